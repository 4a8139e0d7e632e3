"""Program name and location flags of the current invocation, for commands that the program suggests.

kubectl replaces itself by a plugin (``exec``), so the plugin's arguments do not show the caller. Shells store the path
of the program they started in ``$_``, which survives kubectl.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from typing import Final

EXECUTABLE: Final = "kubectl-ddp"

_said: list[str] = [""]
"""Stack of location flags; the last entry is current. Shared by all threads, because background threads print
suggestions too.
"""
_said_here: ContextVar[str | None] = ContextVar("location_flags", default=None)
"""Location flags of this thread, which take precedence."""


def program() -> str:
    """Return ``kubectl ddp`` if kubectl started this process, else ``kubectl-ddp``; for usage lines and suggestions."""
    called = PurePath(sys.argv[0]).name if sys.argv else ""
    caller = PurePath(os.environ.get("_", "")).stem
    return "kubectl ddp" if called.startswith("kubectl-") and caller == "kubectl" else EXECUTABLE


@contextmanager
def location_context(flags: str) -> Iterator[None]:
    """Use these location flags, each with a leading space, in suggested commands inside the block."""
    _said.append(flags)
    try:
        yield
    finally:
        _said.pop()


@contextmanager
def thread_location(flags: str) -> Iterator[None]:
    """Use these location flags inside the block, in this thread only."""
    before = _said_here.set(flags)
    try:
        yield
    finally:
        _said_here.reset(before)


def location_flags() -> str:
    """Return the flags that make a suggested command use the same place.

    >>> with location_context(" -n team"):
    ...     f"{program()} resume digits{location_flags()}"
    'kubectl-ddp resume digits -n team'
    """
    here = _said_here.get()
    return _said[-1] if here is None else here
