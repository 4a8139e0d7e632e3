"""The plain loop under torchft, as its own example has it: one replica group of one process.

Appends one JSON line per committed step to a log, as ``plain_ddp.py`` does.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    """Train a small model until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a step takes at least")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)

    # What torchrun's agent would host for its workers; here the only worker does.
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*place, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
        replica_id=options.replica,
        store_addr=store.host,
        store_port=store.port,
        timeout=timedelta(seconds=10),
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    with options.trace.open("a", buffering=1) as log:
        while True:
            optimizer.zero_grad()
            ddp(torch.randn(16, 64)).square().mean().backward()
            before = manager.current_step()
            optimizer.step()
            step = manager.current_step()
            if step > before:
                world = manager.num_participants()
                line = {"step": step, "time": time.time(), "rank": int(options.replica[-1]), "world": world}
                log.write(json.dumps(line | {"pid": os.getpid()}) + "\n")
            time.sleep(options.pause)


if __name__ == "__main__":
    main()
