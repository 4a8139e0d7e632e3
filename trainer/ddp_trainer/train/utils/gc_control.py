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
