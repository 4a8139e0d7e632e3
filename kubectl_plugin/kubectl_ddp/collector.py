"""Python's collector of cycles, at rest where much is made that has none, as what is read from JSON has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
