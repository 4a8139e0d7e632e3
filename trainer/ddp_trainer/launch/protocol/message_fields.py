"""Types of the fields of messages, with a bound for every integer, string and list.

:mod:`ddp_trainer.common.strict_json` checks the bounds when a message is decoded.
"""

from __future__ import annotations

from typing import Annotated, Final

from ddp_trainer.common.constants import TERMINATION_MESSAGE_BYTES
from ddp_trainer.common.strict_json import MOST_INTEGER, Bounds, Matching

MOST_NODES: Final = 1 << 16
MOST_LOCAL_RANKS: Final = 1 << 10
MOST_RANKS: Final = 1 << 22
MOST_NAMED: Final = 8
"""Most nodes or ranks that a message names. The rest is a count."""
MOST_MET: Final = 16
"""Most nodes in the preflight of a node that joins."""
LONGEST_MODULE: Final = 128
MOST_MODULES: Final = 4_096
MOST_MODULE_BYTES: Final = 1 << 17
"""Most bytes of the names of modules in a message, which is one line: half of the longest line."""
MESSAGE_CHARACTERS: Final = 2_000
STACK_CHARACTERS: Final = 16_000
"""Longer stacks are cut in the middle, because the call is at one end and the error at the other."""

Token = Annotated[str, Bounds(1, 64), Matching("[0-9A-Za-z._-]+")]
Name = Annotated[str, Bounds(0, 253), Matching("[^\\x00-\\x1f\\x7f-\\x9f]*")]
"""Name of a node, host, role or program, or other text that is printed within a line."""
Modules = Annotated[
    tuple[Annotated[str, Bounds(1, LONGEST_MODULE), Matching("[0-9A-Za-z_.]+")], ...], Bounds(0, MOST_MODULES)
]
"""Names of Python modules."""
Address = Annotated[str, Bounds(0, 253), Matching("[0-9A-Za-z.:%_-]*")]
"""A host name or an IP address."""
FilePath = Annotated[str, Bounds(0, 4096), Matching("[^\\x00-\\x1f\\x7f-\\x9f]*")]
Sentence = Annotated[str, Bounds(0, 2 * MESSAGE_CHARACTERS)]
Summary = Annotated[str, Bounds(0, TERMINATION_MESSAGE_BYTES)]
"""Summary of the run as JSON; empty if there is none."""
Stack = Annotated[str, Bounds(0, 2 * STACK_CHARACTERS)]
PortNumber = Annotated[int, Bounds(0, 65535)]
NodeCount = Annotated[int, Bounds(0, MOST_NODES)]
RankNumber = Annotated[int, Bounds(0, MOST_RANKS)]
Number = Annotated[int, Bounds(0, MOST_INTEGER)]
ExitCode = Annotated[int, Bounds(0, 255)]
Seconds = Annotated[float, Bounds(0, 1e12)]
Restarts = Annotated[dict[Annotated[str, Bounds(1, 32)], Number], Bounds(0, 16)]
"""Restarts of the run so far: cause (:class:`~ddp_trainer.common.constants.RestartCause`) → count."""
