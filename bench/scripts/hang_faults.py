"""Faults on order: a process looks for a file of its rank at every step, and does once what stands in there."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

AT_COLLECTIVE = frozenset({"skip", "mismatch", "wait"})
"""Faults at a collective: skipped, replaced by another, or entered by a rank that then holds the GIL while it waits."""


def inject_fault(rank: int) -> str:
    """The fault of the collective that comes next, empty for none; does not return from faults of another kind."""
    order = Path(os.environ["TROUBLE"]) / f"rank-{rank}"
    if not order.exists():
        return ""
    kind = order.read_text()
    order.unlink()
    os.write(1, f"trouble: rank={rank} kind={kind}\n".encode())
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "loop":
        busy_loop()
    elif kind == "nap":
        while not order.exists():  # until it is woken by another order
            time.sleep(0.02)
        order.unlink()
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(3600)
    elif kind == "regex":  # holds the GIL without a system call
        re.match(r"(a+)+$", "a" * 64 + "b")
    return kind if kind in AT_COLLECTIVE else ""


def barrier(fault: str) -> None:
    """A barrier of all ranks, with a fault of :func:`inject_fault`."""
    if fault == "mismatch":
        dist.broadcast(torch.zeros(1), 0)
    elif fault == "wait":
        dist.barrier(async_op=True)
        ctypes.PyDLL(None).sleep(3600)
    elif fault != "skip":
        dist.barrier()


def busy_loop() -> None:
    """Loop without end."""
    while True:
        pass
