"""Control of Python's garbage collection, and lookup of recently created objects.

``--gc-steps`` runs the collector after the same steps on all ranks. By default each rank collects at a different time,
and all other ranks wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


def collecting_by_hand(every_steps: int | None) -> AbstractContextManager[None]:
    """Return a context without automatic garbage collection, or one without effect if ``every_steps`` is None."""
    return nullcontext() if every_steps is None else uncollected()


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable automatic garbage collection inside the context."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_if_due(step: int, every_steps: int | None) -> None:
    """Collect garbage if the number of committed steps, ``step``, is a multiple of ``every_steps``."""
    if every_steps is not None and step % every_steps == 0:
        gc.collect()


def collections() -> int:
    """Return the number of garbage collections in this process so far, over all generations."""
    return sum(of_generation["collections"] for of_generation in gc.get_stats())


def objects_since(moment: int) -> list[Any]:
    """Return a superset of the objects created since :func:`collections` returned ``moment``.

    Without a collection since then, only generation 0 is read. Otherwise all objects are read, which takes 0.1 s.
    """
    youngest = gc.get_objects(generation=0)
    return youngest if collections() == moment else gc.get_objects()
