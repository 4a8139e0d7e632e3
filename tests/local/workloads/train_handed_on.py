"""Three ranks that are left of two replicas of two shards, in a layout that has a place for two of them.

The first two hold the same slot and a step more than the third, which holds the other slot, and had voted for that
step. A line for each rank says what it goes on from; the spare tells what it heard when the others were done.

The third one gives the second one its slot in small pieces, while the first rank neither gives nor gets anything.
"""

from __future__ import annotations

import os
import sys

import torch

from ddp_trainer.common.parallel_dims import Layout, LayoutRange
from ddp_trainer.train.checkpoint import state_transfer
from ddp_trainer.train.checkpoint.checkpoint_broadcast import progress_key
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, unpack
from ddp_trainer.train.checkpoint.manifest import Identity, Manifest
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.recovery.group_transition import select_active_ranks
from ddp_trainer.train.recovery.peer_recovery import LocalState, recover_from_peers
from kubectl_ddp.backends.local.process import set_parent_death_signal
from tests.support.ports import free_port

BEFORE = Layout(replicate=2, shard=2)
OLD_RANKS = (0, 2, 3)
"""Of those that are left; the second one is lost."""
STEP = 5
NOW = LayoutRange.parse("replicate=1:2,shard=2")


PIECE_BYTES = 8


def beside(step: int) -> Checkpoint:
    """What stands beside pieces."""
    identity = Identity(task="", model="", data="", samples=0, seed=0, global_batch=0, order="")
    rest = {"batch_slices": 4, "generation": 1, "run_id": "", "world_size": 4, "sha256": "", "size_bytes": 0}
    manifest = Manifest(identity=identity, step=step, epoch=0, written_at=0.0, torch="", **rest)
    return Checkpoint(manifest, state={"skipped": 0, "step": step})


def holding(rank: int) -> LocalState:
    """Of a rank of the group before: a tensor that says whose it is, and after how many steps."""
    is_behind = rank == OLD_RANKS[-1]
    step = STEP - is_behind
    states = [{"state": torch.tensor([rank % BEFORE.replica, step + more])} for more in (0, 1)]
    return LocalState(
        step=step,
        attained=progress_key(step),
        layout=BEFORE,
        rank=rank,
        holdings=states[0],
        ahead=states[1] if is_behind else None,
        beside=beside(step),
        skipped=0,
    )


def tell(line: str) -> None:
    """In one write, as all ranks have the same pipe."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def be(rank: int, port: int, done: tuple[int, int]) -> None:
    """Rank ``rank`` of those that are left; none leaves before all are ``done``, a pipe that ends when they are."""
    env = Environment(rank=rank, world_size=len(OLD_RANKS), master_port=port, generation=2)
    group = Group.join(env, torch.device("cpu"), 60)
    layout = NOW.choose(group.world_size)
    taken = recover_from_peers(
        group,
        layout,
        holding(OLD_RANKS[rank]),
        demand=lambda _: None,
        skipped=lambda checkpoint: int(unpack(checkpoint)["skipped"]),
    )
    select_active_ranks(NOW, group, lambda _: None)
    assert taken is not None
    if group.is_spare:
        report = group.wait_as_spare(lambda: False).decode()
        tell(f"spare {rank} heard {report}")
    else:
        both = group.gather(rank)
        slot, step = taken.holdings["state"].tolist()
        tell(f"rank {rank} of {both} has slot {slot} after {step} and {unpack(taken.beside)['step']}")
        group.release(b"the end")
    reader, writer = done
    os.close(writer)
    os.read(reader, 1)
    group.close()


def main() -> int:
    """Fork the ranks; 0 where all of them ended well."""
    state_transfer._BUCKET_BYTES = PIECE_BYTES  # type: ignore[misc]
    port = free_port()
    done = os.pipe()
    parent = os.getpid()
    ranks = []
    for rank in range(len(OLD_RANKS)):
        if child := os.fork():
            ranks.append(child)
            continue
        try:
            set_parent_death_signal(parent)
            be(rank, port, done)
        except BaseException as err:  # noqa: BLE001 - a fork must not go on as its parent
            tell(repr(err))
            os._exit(1)
        os._exit(0)
    os.close(done[1])
    return max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
