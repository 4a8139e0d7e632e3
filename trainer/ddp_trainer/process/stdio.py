"""Words that nobody reads: the reader of a pipe has gone, as ``head`` does, the disk is full, or a stream is closed.

Training does not end for that; a command that only shows something ends in good order.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from ddp_trainer.common.constants import Exit

READER_IS_GONE: Final = Exit.SIGNAL_BASE + signal.SIGPIPE
"""What a program that SIGPIPE ended exits with."""

_STANDARD: Final = (0, 1, 2)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def open_closed() -> None:
    """Lead streams that the caller has closed (``>&-``) nowhere, before a socket of ours gets the number of one."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def run_for_a_reader(command: Callable[[], int], program: str) -> int:
    """Run what shows something; its exit code, or that of a program whose words cannot be written."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where a failure is a sentence; Python's own flush comes too late for one
    except BrokenPipeError:
        silence()
        return READER_IS_GONE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        silence()
        print(f"{program}: What there is to say cannot be written: {error.strerror}.", file=sys.stderr)
        return Exit.FAILURE


def say_or_not(text: str = "") -> None:
    """Write a line to stdout, and what waits to be written; when nobody takes it, be silent from then on."""
    try:
        if text:
            print(text)
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        silence()


def silence() -> None:
    """Lead what is still to be written nowhere: Python's flush at its end would fail, and change the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
