"""Order of the worker groups of one run by their fences.

A fence is a number of milliseconds since the Unix epoch: the median of the nodes' clocks when the group forms, or one
more than the fence of the previous group. A clock that is a year ahead thus makes a fence that no later group reaches
for a year. Such a fence gives no valid order, so every reader bounds it: the store when an agent reports the fence of
its last group, and the trainer when it claims a checkpoint directory. Standard library only.
"""

from __future__ import annotations

import time
from typing import Final

MAX_AHEAD_SECONDS: Final = 86_400.0
"""Longest time in seconds that a valid fence may be ahead of the reader's clock."""


def is_valid_fence(fence: int, now: float | None = None) -> bool:
    """Return whether a fence is at most a day ahead of ``now`` (Unix time; this machine's clock by default)."""
    return fence <= ((time.time() if now is None else now) + MAX_AHEAD_SECONDS) * 1000


def precedence(fence: int, now: float | None = None) -> tuple[bool, int]:
    """Return the sort key of a group: a greater fence is later, and a believable one is later than any other."""
    return is_valid_fence(fence, now), fence
