"""When Python collects garbage, and what it knows of objects by that.

``--gc-steps`` lets it be collected after the same steps on all ranks. Left alone, each rank stops to collect at moments
of its own, and every time all others wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


def collecting_by_hand(every_steps: int | None) -> AbstractContextManager[None]:
    """While training goes on, Python collects nothing by itself; where None, all stays as it is."""
    return nullcontext() if every_steps is None else uncollected()


@contextmanager
def uncollected() -> Iterator[None]:
    """Meanwhile Python collects nothing by itself."""
    if not gc.isenabled():
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


def collections() -> int:
    """How often garbage was collected in this process."""
    return sum(of_generation["collections"] for of_generation in gc.get_stats())


def objects_since(moment: int) -> list[Any]:
    """All objects that were made since there were so many :func:`collections`, and others beside them.

    What was made since the last one are the youngest objects. To look at all of them takes a tenth of a second.
    """
    youngest = gc.get_objects(generation=0)
    return youngest if collections() == moment else gc.get_objects()
