"""Values that a script names itself, such as ``val_accuracy``: a JSON file beside the metrics file of its rank.

Cells of a metrics file have fixed names, so these values have a file of their own, which :class:`UserValues` replaces
as a whole. The exporter reads it with :func:`read_user_values`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ddp_trainer.process.atomic_files import draft_of

MOST_NAMES: Final = 32
"""Largest number of names of a rank. Each is a series."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,47}")
WRITE_SECONDS: Final = 1.0
"""Least seconds between two writes of a value. Prometheus scrapes every 15 seconds."""
_MOST_BYTES: Final = 8192


def user_values_path(metrics_file: Path) -> Path:
    """Return the path of the file beside a metrics file."""
    return metrics_file.with_suffix(".values")


class InvalidNameError(ValueError):
    """The name of a value is not allowed."""


class TooManyNamesError(ValueError):
    """The rank has as many names as it may have."""


class UserValues:
    """Values of one rank, by name. Each is written at most once per second, and by :meth:`flush`."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Continue with the values of an earlier process; without a path, they are kept in memory."""
        self._path = path
        self._clock = clock
        self._pid = os.getpid()
        self._values: dict[str, Any] = {} if path is None else {**read_user_values(path)}
        self._new: dict[str, None] = {}
        self._written_at: dict[str, float] = {}
        self._unwritten: dict[str, None] = {}
        self.has_own_loss = False
        """True if a recorder reports the loss, which then is the loss of the job."""

    def put(self, name: str, value: Any) -> None:
        """Set a value: a number, or a tensor with one element. A tensor on a GPU is copied, and read when written.

        Raises:
            InvalidNameError, TooManyNamesError: The name cannot be used.
            TypeError, ValueError: The value is not a number.
        """
        if not NAME.fullmatch(name):
            raise InvalidNameError(
                f"{name!r:.60}: a name has up to 48 letters, digits and any of '_./-', and begins with a letter"
            )
        if name not in self._values and len(self._values) >= MOST_NAMES:
            raise TooManyNamesError(f"{name!r}: {MOST_NAMES} names are in use, the limit of a rank")
        is_on_gpu = getattr(value, "is_cuda", False)
        if is_on_gpu and (value.numel() != 1 or value.is_complex()):
            raise ValueError(f"a value is one real number, and the tensor has {value.numel()} of {value.dtype}")
        self._values[name] = value.detach().clone() if is_on_gpu else to_float(value)
        self._new[name] = self._unwritten[name] = None

    def take(self) -> dict[str, float]:
        """Return the values that were set since the last call."""
        if not self._new:
            return {}
        names, self._new = self._new, {}
        return {name: float(self._values[name]) for name in names}

    def write_if_due(self) -> None:
        """Write the file if it lacks a value whose name was not written within a second. Raises OSError."""
        now = self._clock()
        if any(now - self._written_at.get(name, float("-inf")) >= WRITE_SECONDS for name in self._unwritten):
            self.flush()

    def flush(self) -> None:
        """Write the values that the file does not have yet. A forked process does not: the file is its parent's."""
        if not self._unwritten or self._path is None or self._pid != os.getpid():
            return
        self._written_at |= dict.fromkeys(self._unwritten, self._clock())
        self._unwritten = {}
        self._values = {name: float(value) for name, value in self._values.items()}
        with draft_of(self._path) as draft:
            draft.write_text(json.dumps(self._values))


def to_float(value: Any) -> float:
    """Convert a number, or a tensor with one element. torch warns of a conversion that gradients would pass through."""
    return float(value.detach() if hasattr(value, "detach") else value)


def read_user_values(path: Path) -> Mapping[str, float]:
    """Return the values in a file by name; empty if it is missing or malformed, since any program may write there."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        pairs = found.items() if isinstance(found, dict) else ()
        known = [
            (name, float(value)) for name, value in pairs if NAME.fullmatch(name) and isinstance(value, int | float)
        ]
    except (OSError, ValueError, OverflowError, RecursionError):
        return {}
    return dict(known[:MOST_NAMES])
