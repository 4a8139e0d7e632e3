"""``--gc-steps``: Python's garbage is collected after the same steps on all ranks.

Left alone, each rank stops to collect at moments of its own, and every time all others wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_by_hand(every_steps: int | None) -> Iterator[None]:
    """While training goes on, Python collects nothing by itself; where None, all stays as it is."""
    if every_steps is None or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_if_due(step: int, every_steps: int | None) -> None:
    """After ``step`` committed steps."""
    if every_steps is not None and step % every_steps == 0:
        gc.collect()
