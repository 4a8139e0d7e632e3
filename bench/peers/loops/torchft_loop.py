"""The plain loop with torchft's manager, DDP and optimizer wrapper."""

import os
from datetime import timedelta
from typing import Any

import loop_parts
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

CHECKPOINT = loop_parts.FOLDER / "checkpoint.pt"


def main() -> None:
    """Train."""
    model, optimizer = loop_parts.build()

    def load_state(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def get_state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    timeout = timedelta(seconds=loop_parts.TIMEOUT_SECONDS)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout / 2),
        min_replica_size=1,
        load_state_dict=load_state,
        state_dict=get_state,
        replica_id=f"group_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timeout,
    )
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        load_state(state)
        manager.load_state_dict(state["manager"])
    ddp = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)
    trace = loop_parts.Trace()
    while (before := manager.current_step()) < loop_parts.STEPS:
        loop_parts.hang_if_requested()
        managed.zero_grad()
        rank, world = manager.participating_rank(), manager.num_participants()
        step = manager.current_step() + 1
        ddp(loop_parts.batch(step, rank or 0, world)).backward()
        managed.step()
        if manager.current_step() <= before:
            continue
        if rank == 0 and step % loop_parts.SAVE_STEPS == 0:
            state = {**get_state(), "manager": manager.state_dict()}
            torch.save(state, CHECKPOINT.with_suffix(".partial"))
            CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
        trace.commit(step, rank or 0, world, model)
    manager.shutdown()


if __name__ == "__main__":
    main()
