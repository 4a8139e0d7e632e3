"""Values that a script names itself, such as ``val_accuracy``: a JSON file beside the board of its rank.

Cells of a board have fixed names, so these values have a file of their own, which :class:`UserValues` replaces as a
whole. The exporter reads it with :func:`read_user_values`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ddp_trainer.process.atomic_files import draft_of

MOST_NAMES: Final = 32
"""Largest number of names. Each is a series of the job."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,47}")
WRITE_SECONDS: Final = 1.0
"""Least seconds between two replacements of the file. Prometheus scrapes every 15 seconds."""
_MOST_BYTES: Final = 8192


def user_values_path(board: Path) -> Path:
    """Return the path of the file beside a board."""
    return board.with_suffix(".values")


class UserValues:
    """Values of one rank, by name. The file is written at most once per second, and by :meth:`flush`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Continue with the values of an earlier process."""
        self._path = path
        self._clock = clock
        self._values: dict[str, Any] = {**read_user_values(path)}
        self._written_at = float("-inf")
        self._is_written = True

    def put(self, name: str, value: Any) -> None:
        """Set a value: a number, or a tensor with one element, which is read when the file is written.

        Raises:
            TypeError, ValueError: The value is no number, the name is not allowed, or there are too many.
        """
        if not NAME.fullmatch(name):
            raise ValueError("a name has up to 48 letters, digits and any of '_./-', and begins with a letter")
        if name not in self._values and len(self._values) >= MOST_NAMES:
            raise ValueError(f"{MOST_NAMES} names are in use, and a job has no more")
        is_on_gpu = getattr(value, "is_cuda", False)
        if is_on_gpu and value.numel() != 1:
            raise ValueError(f"a value is one number, and the tensor has {value.numel()}")
        self._values[name] = value.detach() if is_on_gpu else float(value)
        self._is_written = False

    def write_if_due(self) -> None:
        """Write the file, unless it was written less than a second ago. Raises OSError."""
        if self._clock() - self._written_at >= WRITE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the values that the file does not have yet."""
        if not self._is_written:
            self._written_at, self._is_written = self._clock(), True
            self._values = {name: float(value) for name, value in self._values.items()}
            with draft_of(self._path) as draft:
                draft.write_text(json.dumps(self._values))


def read_user_values(path: Path) -> Mapping[str, float]:
    """Return the values in a file by name; empty if it is missing or malformed, since any program may write there."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    known = [(name, float(value)) for name, value in pairs if NAME.fullmatch(name) and isinstance(value, int | float)]
    return dict(known[:MOST_NAMES])
