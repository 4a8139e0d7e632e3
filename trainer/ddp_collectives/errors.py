"""Errors of the measurement, each reported in one sentence, and its exit codes.

========================================  ====
every result correct                      0
a wrong result, or a lost peer            1
an invalid flag or file                   2
slower than the earlier run or a floor    3
Ctrl-C                                    143
========================================  ====

The launcher handles Ctrl-C; a rank that was started without a launcher ends with 130.
"""

from __future__ import annotations

from typing import ClassVar, Final

SLOWER: Final = 3
INTERRUPTED: Final = 130


class CollectivesError(Exception):
    """Base class of errors that are reported in one sentence."""

    exit_code: ClassVar[int] = 1


class BadRequest(CollectivesError):
    """A flag, a file or a machine does not fit the request."""

    exit_code = 2


class CommunicationFailed(CollectivesError):
    """A collective raised: a peer ended or does not answer, or the network is cut."""


def first_line(error: Exception) -> str:
    r"""Return torch's message without the stack that it appends.

    >>> first_line(RuntimeError("Connection closed by peer.\nException raised from ..."))
    'Connection closed by peer'
    """
    return str(error).strip().partition("\n")[0].rstrip(".")
