"""Output of the launcher on stderr, between the lines of its workers.

The entry point is :func:`log_line`.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.safe_text import clean_text

STDERR: Final = 2


def log_line(sentence: str) -> None:
    """Write one line to stderr with the launcher's prefix.

    A single write keeps the lines of workers out of it. Write errors are ignored, because stderr may be closed or its
    reader gone, and training must continue.
    """
    with contextlib.suppress(OSError):
        os.write(STDERR, f"ddp-launch: {clean_text(sentence)}\n".encode())


class LaunchError(Exception):
    """Invalid flag, script or port."""

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
