"""Control of Python's garbage collection.

``--gc-steps`` runs the collector after the same steps on all ranks. By default each rank collects at a different time,
and all other ranks wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def manual_gc(every_steps: int | None) -> Iterator[None]:
    """Disable automatic garbage collection inside the context, unless ``every_steps`` is None."""
    if every_steps is None or not gc.isenabled():
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
