"""Standard streams that cannot be written: the reader of a pipe has exited, the disk is full, or a stream is closed.

Training does not end in these cases. A command that only prints output ends without a traceback.
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
"""Exit code of a program that SIGPIPE ended."""

_STANDARD: Final = (0, 1, 2)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def open_closed() -> None:
    """Open closed standard streams (``>&-``) on the null device, before a socket of this process takes their number."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def run_for_a_reader(command: Callable[[], int], program: str) -> int:
    """Run a command that prints output.

    Args:
        command: Prints to stdout and returns its exit code.
        program: Name of the program, for the error message.

    Returns:
        The exit code of the command, or a failure code if the reader has exited or the disk is full.

    Raises:
        OSError: If the output cannot be written for another reason.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # Python's own flush at exit comes too late for an error message
    except BrokenPipeError:
        silence()
        return READER_IS_GONE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        silence()
        print(f"{program}: Cannot write output: {error.strerror}.", file=sys.stderr)
        return Exit.FAILURE


def print_safe(text: str = "") -> None:
    """Write a line and all buffered output to stdout; after a failure, discard all later output."""
    try:
        if text:
            print(text)
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        silence()


def silence() -> None:
    """Discard buffered output that cannot be written.

    Otherwise Python's flush at exit would fail and change the exit code.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
