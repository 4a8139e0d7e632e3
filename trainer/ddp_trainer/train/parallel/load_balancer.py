"""``--balance dynamic``: a slow rank owns fewer logical shards, and the result stays what it is.

Every rank adds to its vote how long a sample keeps it busy. So all ranks know the same numbers and draw the same map
from them, without a word more: contiguous runs of shards, at least one each. A new map holds from the step after a
committed one. Who computes a shard has no part in what is computed, so losses are equal up to rounding.

Busy is a rank while it fetches and while the forward pass runs. The backward pass is left out: in it a rank also waits
for the others, and a slow rank would make all look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch
from torch import Tensor

from ddp_trainer.common.constants import Phase
from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import StepTimer

WINDOW_STEPS: Final = 10
"""Steps whose median decides; also the least number of steps between two maps."""

LEAST_GAIN: Final = 0.1
"""Share of the slowest rank's time that a new map must save, or the old one stays."""


class LoadBalancer:
    """The map from shards to ranks, the same on every rank."""

    def __init__(self, shards: int, group: Group, phases: StepTimer, told: Callable[[Sequence[int]], None]) -> None:
        """``told`` is called with the number of shards of each rank when that changes."""
        self._shards = shards
        self._group = group
        self._phases = phases
        self._told = told
        self._counts = [len(owned(shards, group.world_size, rank)) for rank in range(group.world_size)]
        self._busy: list[list[float]] = [[] for _ in self._counts]
        self._steps = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._forward = 0.0

    def timed(self, forward: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
        """The forward pass, on a GPU between two marks: the host does not know how long it takes."""
        if self._group.device.type != "cuda":
            return forward

        def run(batch: Batch) -> Tensor:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch's
            began.record()
            losses = forward(batch)
            ended.record()
            self._events.append((began, ended))
            return losses

        return run

    def ballot(self, samples: int) -> list[float]:
        """Seconds that a sample kept this rank busy, in its own place, for the vote; zeros for those of the others."""
        busy = self._phases.spent(Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)
        # Of a GPU it is the forward pass of the step before, which the vote has waited for.
        busy += self._forward if self._group.device.type == "cuda" else self._phases.spent(Phase.FORWARD)
        ballot = [0.0] * self._group.world_size
        ballot[self._group.rank] = busy / samples if samples else 0.0
        return ballot

    def settle(self, busy: Sequence[float]) -> list[range] | None:
        """Return the shards of every rank from the next step on, or None where they stay; the votes were these."""
        self._forward = sum(began.elapsed_time(ended) for began, ended in self._events) / 1e3
        self._events.clear()
        for seen, seconds in zip(self._busy, busy, strict=True):
            if seconds > 0:
                seen.append(seconds)
        self._steps += 1
        if self._steps % WINDOW_STEPS or not all(self._busy):
            return None
        costs = [sorted(seen)[len(seen) // 2] for seen in self._busy]
        self._busy = [[] for _ in self._counts]
        better = fair(self._shards, costs)
        if slowest(better, costs) > (1 - LEAST_GAIN) * slowest(self._counts, costs):
            return None
        self._counts = better
        self._told(better)
        return [range(start, stop) for start, stop in pairwise([0, *accumulate(better)])]


def fair(shards: int, costs: Sequence[float]) -> list[int]:
    """Shards of each rank such that the slowest is done as early as can be; at least one each.

    >>> fair(8, [1.0, 1.0]), fair(8, [1.0, 3.0]), fair(8, [1.0, 100.0])
    ([4, 4], [6, 2], [7, 1])
    """
    counts = [1] * len(costs)
    for _ in range(shards - len(costs)):
        # Whoever would be done first with one more gets it: no other choice has an earlier slowest.
        counts[min(range(len(costs)), key=lambda rank: (counts[rank] + 1) * costs[rank])] += 1
    return counts


def slowest(counts: Sequence[int], costs: Sequence[float]) -> float:
    """How long the slowest rank takes.

    >>> slowest([6, 2], [1.0, 3.5])
    7.0
    """
    return max(count * cost for count, cost in zip(counts, costs, strict=True))
