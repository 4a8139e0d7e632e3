"""Features of a DDP trainer, each on real digits with two processes; most of them are tested elsewhere.

====================================  ==========================================================================
DataParallel                          test_train_strategies: one process; its GPU part is skipped by name
DDP, gradients averaged by hand       test_train_strategies: both learn the same
mp.spawn                              here; test_launch_starts: under the launcher
mixed precision                       test_train_precision: bf16, fp16 with what overflows; test_train_exact
no_sync                               here: how often gradients are exchanged; test_train_strategies: micro-batches
SyncBatchNorm                         test_train_precision: refused without GPUs, its GPU part is skipped by name
unused parameters                     test_train_strategies; test_train_exact: left alone, decay included
distributed and rank-0 evaluation     test_train_exact: the same bits
resume                                test_train_restart, test_train_checkpoints, test_train_strategies
clipping, schedule                    test_train_strategies
dynamic balance                       test_train_data, test_train_exact
synchronous against asynchronous      test_train_strategies: local-sgd
====================================  ==========================================================================
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.local.workloads.train_outcome import STEPS, train
from tests.support.ports import free_port
from tests.support.programs import captured

SPAWNS = """
import os, sys
import torch
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from ddp_trainer.train import Config, run

exchanges = 0

def counted(state, bucket):
    global exchanges
    exchanges += 1
    return allreduce_hook(state, bucket)

class Counted(DistributedDataParallel):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_comm_hook(None, counted)

def work(rank, flags):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.nn.parallel.DistributedDataParallel = Counted
    summary = run(Config(**flags)).summary
    print(f"rank {rank} exchanged {exchanges} times, lost {summary.samples_lost}", flush=True)

if __name__ == "__main__":
    mp.spawn(work, args=(eval(sys.argv[1]),), nprocs=2)
"""
FLAGS = {
    "task": "tests.local.workloads.train_flawed:PlainDigits",
    "max_steps": STEPS,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "warmup_steps": 5,
}
"""Flags of train_outcome."""


def test_a_script_that_spawns_its_ranks_learns_the_same_and_exchanges_gradients_once_a_step(tmp_path: Path) -> None:
    launched = train(tmp_path / "launched", [])
    (tmp_path / "spawns.py").write_text(SPAWNS)
    root = Path(__file__).parents[3]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    summary = tmp_path / "summary.json"
    flags = repr(FLAGS)[:-1] + f", 'summary': __import__('pathlib').Path({str(summary)!r})" + "}"
    done = captured(
        [sys.executable, str(tmp_path / "spawns.py"), flags], env=env | place | {"PYTHONPATH": str(root)}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    # Four slices of each rank are four backward passes; all but the last are under no_sync.
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"rank {rank} exchanged {STEPS} times, lost 0" for rank in range(2)]
    assert json.loads(summary.read_text())["loss"] == pytest.approx(launched.summary["loss"], rel=1e-5)
