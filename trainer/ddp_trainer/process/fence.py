"""Order of the worker groups of one run, by their fences.

A fence is a number of milliseconds since the Unix epoch: the median of the nodes' clocks when the group forms, or one
more than the fence of the group before it. Clocks that are a year ahead thus make a fence that no later group reaches
for a year. Such a fence orders nothing, so every reader bounds it: the store when an agent reports the fence of its
last group, and the trainer when it claims a checkpoint directory. Standard library only.
"""

from __future__ import annotations

import time
from typing import Final

MAX_AHEAD_SECONDS: Final = 86_400.0
"""How far a fence may lie ahead of the reader's clock and still be believed."""


def is_believable(fence: int, now: float | None = None) -> bool:
    """Whether the fence lies at most a day ahead of ``now`` (this machine's clock)."""
    return fence <= ((time.time() if now is None else now) + MAX_AHEAD_SECONDS) * 1000


def precedence(fence: int, now: float | None = None) -> tuple[bool, int]:
    """Sort key of groups of one run: a greater fence is later, and a believable one is later than any other."""
    return is_believable(fence, now), fence
