"""Names that torch gives to process groups. Ranks must use the same names to meet."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def restart_group_names() -> None:
    """Reset the name of the next default group to the name that it has in a new process.

    torch names a group by its number in this process, and the name is part of the group's keys in the store. torch
    counts from 0 again when a complete default group is destroyed. A group that failed while it was made stays counted.
    Then this rank and a new one would wait for each other under two names. No default group may exist when this
    function is called.
    """
    world: Any = getattr(dist.distributed_c10d, "_world", None)
    if hasattr(world, "group_count"):
        world.group_count = 0
