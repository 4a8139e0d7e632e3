"""A plain DDP loop with metrics, which gets into trouble on order; as ``bench/scripts/hanging_ddp.py`` beside that."""

from __future__ import annotations

import ctypes
import os
import re
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ddp_trainer.metrics import attach


def strike(rank: int) -> None:
    """Do once what is ordered, if anything is."""
    order = Path(os.environ["TROUBLE"]) / f"rank-{rank}"
    if not order.exists():
        return
    kind = order.read_text()
    order.unlink()
    print(f"trouble: rank={rank} kind={kind}", flush=True)
    if kind == "loop":
        while not order.exists():
            pass
        order.unlink()
    elif kind == "gil":
        dist.all_reduce(torch.ones(1), async_op=True)
        ctypes.PyDLL(None).sleep(3600)
    elif kind == "regex":
        re.match(r"(a+)+$", "a" * 64 + "b")


def main() -> None:
    """Step until a signal."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meter = attach.meter()
    meter.recorder.identity(rank=rank, local_rank=rank, world_size=2, backend="gloo", device="cpu")
    while True:
        strike(rank)
        dist.all_reduce(torch.ones(1))
        meter.step(samples=1)
        time.sleep(0.02)


main()
