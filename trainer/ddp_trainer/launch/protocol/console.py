"""The launcher's own lines on stderr, between those of its workers."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from ddp_trainer.common.safe_text import clean_text

STDERR: Final = 2


def say(sentence: str) -> None:
    """One line on stderr, marked as ours, in one write so that no worker's line gets into it.

    Nobody may be there to read it: stderr closed, or a pipe whose reader is gone. Training goes on all the same.
    """
    with contextlib.suppress(OSError):
        os.write(STDERR, f"ddp-launch: {clean_text(sentence)}\n".encode())
