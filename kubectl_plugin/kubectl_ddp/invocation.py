"""What this program is called, by the person who called it, and where they said to look: for commands to type next.

kubectl starts a plugin in its own place (``exec``), so the plugin cannot tell from its arguments who called; shells,
however, put the path of what they started into ``$_``, and that survives kubectl.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

EXECUTABLE: Final = "kubectl-ddp"

_said: list[str] = [""]
"""The flags by which the command under way was told where to look, the last counts. Not of one thread alone: those that
watch and read for a command give advice, too."""


def program() -> str:
    """``kubectl ddp`` when kubectl started us, ``kubectl-ddp`` otherwise; for usage lines and advice."""
    called = PurePath(sys.argv[0]).name if sys.argv else ""
    caller = PurePath(os.environ.get("_", "")).stem
    return "kubectl ddp" if called.startswith("kubectl-") and caller == "kubectl" else EXECUTABLE


@contextmanager
def location_context(flags: str) -> Iterator[None]:
    """Within, advice is about the place that these flags mean, each with a space in front of it."""
    _said.append(flags)
    try:
        yield
    finally:
        _said.pop()


def location_flags() -> str:
    """The flags that a command needs which is to be typed next, to look at the same place.

    >>> with location_context(" -n team"):
    ...     f"{program()} resume digits{location_flags()}"
    'kubectl-ddp resume digits -n team'
    """
    return _said[-1]
