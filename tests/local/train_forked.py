"""Runs of the trainer one after the other, whose ranks are forked from one process that has imported what they need.

Eight ranks that import torch each by itself cost a small machine ten seconds; forked, they cost it nothing. Arguments
are JSON: for each run the number of its ranks, and its flags. The last rank's code ends all of it if it is not 0.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from ddp_trainer.train.transforms import precision
from kubectl_ddp.backends.local.prctl import set_parent_death_signal
from tests.support.ports import free_port

IMPORTED = (
    "ddp_trainer.metrics.attach",
    "ddp_trainer.train.cli",
    "ddp_trainer.train.evaluation.sharded_evaluation",
    "ddp_trainer.train.parallel.fully_shard",
    "ddp_trainer.train.parallel.apply_tp",
    "ddp_trainer.train.parallel.pp.pp_state",
    "ddp_trainer.train.parallel.pipeline",
    "tests.local.train_layouts",
)


def train(world: int, flags: Sequence[str], *, generation: int) -> list[int]:
    """Exit codes of the ranks of a run, of which the first one speaks on stdout."""
    port = free_port()
    parent = os.getpid()
    ranks = []
    for rank in range(world):
        if child := os.fork():
            ranks.append(child)
        else:
            _be(rank, world, port, generation, flags, parent)
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


def _be(rank: int, world: int, port: int, generation: int, flags: Sequence[str], parent: int) -> None:
    """Rank ``rank``, to its end and that of the process, or to that of its parent."""
    set_parent_death_signal(parent)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", DDP_GENERATION=str(generation), DDP_RUN_ID="test")
    code = 1
    with suppress(BaseException):
        if rank:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        from ddp_trainer.metrics.attach import rank_recorder
        from ddp_trainer.train.cli import main

        code = main(["--log-json", *flags], recorder=rank_recorder)
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    for each in IMPORTED:
        importlib.import_module(each)
    precision._cpu_has_fp16 = lambda: True  # where the processor has none, torch imitates it
    for number, (ranks_of, flags_of) in enumerate(map(json.loads, sys.argv[1:])):
        if any(codes := train(ranks_of, flags_of, generation=number)):
            sys.exit(f"{flags_of} ended with {codes}")
