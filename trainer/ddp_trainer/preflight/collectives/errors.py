"""What the measurement reports in one sentence, and what it exits with.

========================================  ====
every result right                        0
a wrong result, or a lost peer            1
a flag or a file that cannot be meant     2
slower than the earlier run or a floor    3
Ctrl-C                                    143
========================================  ====

Ctrl-C is the launcher's to answer; a rank that was started without one ends with 130.
"""

from __future__ import annotations

from typing import ClassVar, Final

SLOWER: Final = 3
INTERRUPTED: Final = 130


class CollectivesError(Exception):
    """Base of what is reported in one sentence."""

    exit_code: ClassVar[int] = 1


class BadRequest(CollectivesError):
    """A flag, a file or a machine that cannot be meant."""

    exit_code = 2


class CommunicationFailed(CollectivesError):
    """A collective raised: a peer is gone, silent, or the network is cut."""


def first_line(error: Exception) -> str:
    r"""What torch said, without the stack that it appends.

    >>> first_line(RuntimeError("Connection closed by peer.\nException raised from ..."))
    'Connection closed by peer'
    """
    return str(error).strip().partition("\n")[0].rstrip(".")
