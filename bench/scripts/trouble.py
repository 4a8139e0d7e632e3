"""Faults on order: a process looks for a file of its rank at every step, and does once what stands in there."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path


def strike(rank: int) -> bool:
    """Whether the collective that comes next is to be skipped; does not return from the other faults."""
    order = Path(os.environ["TROUBLE"]) / f"rank-{rank}"
    if not order.exists():
        return False
    kind = order.read_text()
    order.unlink()
    os.write(1, f"trouble: rank={rank} kind={kind}\n".encode())
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "loop":
        spin()
    elif kind == "nap":
        while not order.exists():  # until it is woken by another order
            time.sleep(0.02)
        order.unlink()
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(3600)
    return kind == "skip"


def spin() -> None:
    """Do nothing, for ever."""
    while True:
        pass
