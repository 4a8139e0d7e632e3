"""Python's collector of cycles, at rest where much is made that has none, as what is read from JSON has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SELDOM: Final = 50_000
"""Objects that are made and not given back, after which cycles are looked for."""


def raise_gc_threshold() -> None:
    """Look for cycles seldom: to import a command makes tens of thousands of objects, and nearly all of them stay."""
    gc.set_threshold(SELDOM)


def freeze_gc() -> None:
    """The process ends: Python would look through all that is there twice more, a tenth of a short command's time."""
    gc.freeze()


@contextmanager
def at_rest() -> Iterator[None]:
    """Look for no cycles within, in any thread; what nobody holds any more is given back all the same."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
