"""Load balancer of ``--balance dynamic``: slow ranks own fewer batch slices.

Each rank adds its busy time per sample to the commit vote. All ranks therefore have the same numbers and compute the
same map without further communication: contiguous runs of slices, at least one per rank. A new map takes effect in the
step after a committed step. The result does not depend on which rank computes a slice, so losses are equal up to
rounding.

A rank is busy while it fetches samples and while the forward pass runs. The backward pass does not count: in it a rank
also waits for the others, so one slow rank would make all ranks appear equally slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import StepTimer

WINDOW_STEPS: Final = 10
"""Number of steps whose median busy time decides; also the minimum number of steps between two maps."""

LEAST_GAIN: Final = 0.1
"""Minimum fraction of the slowest rank's time that a new map must save to replace the old one."""


class LoadBalancer:
    """Map from batch slices to ranks, the same on every rank."""

    def __init__(
        self, batch_slices: int, group: Group, phases: StepTimer, on_change: Callable[[Sequence[int]], None]
    ) -> None:
        """Start with equal numbers of slices per rank.

        Args:
            batch_slices: Number of slices of a batch.
            group: The group of the ranks.
            phases: The timer of the phases of a step.
            on_change: Called with the number of slices of each rank when the map changes.
        """
        self._batch_slices = batch_slices
        self._group = group
        self._phases = phases
        self._on_change = on_change
        self._counts = [len(owned(batch_slices, group.world_size, rank)) for rank in range(group.world_size)]
        self._busy: list[list[float]] = [[] for _ in self._counts]
        self._steps = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._forward = 0.0

    def __enter__(self) -> None:
        """Begin a forward pass on a GPU, which is timed by CUDA events, because the host cannot time the GPU."""
        self._events.append((_cuda_event(), _cuda_event()))
        self._events[-1][0].record()

    def __exit__(self, *_: object) -> None:
        """End the forward pass."""
        self._events[-1][1].record()

    def cost_vector(self, samples: int) -> list[float]:
        """Return this rank's part of the vote: its busy seconds per sample at its own index, zeros elsewhere."""
        busy = self._phases.phase_seconds(Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)
        # On a GPU this is the forward pass of the previous step, whose events are complete since that step's vote.
        busy += self._forward if self._group.device.type == "cuda" else self._phases.phase_seconds(Phase.FORWARD)
        costs = [0.0] * self._group.world_size
        costs[self._group.rank] = busy / samples if samples else 0.0
        return costs

    def rebalance(self, rank_costs: Sequence[float]) -> list[range] | None:
        """Return the slices of every rank from the next step on, or None if the map stays.

        Args:
            rank_costs: Busy time of each rank in the vote, in seconds per sample.
        """
        self._forward = sum(began.elapsed_time(ended) for began, ended in self._events) / 1e3
        self._events.clear()
        for seen, seconds in zip(self._busy, rank_costs, strict=True):
            if seconds > 0:
                seen.append(seconds)
        self._steps += 1
        if self._steps % WINDOW_STEPS or not all(self._busy):
            return None
        costs = [sorted(seen)[len(seen) // 2] for seen in self._busy]
        self._busy = [[] for _ in self._counts]
        better = balance_slices(self._batch_slices, costs)
        if max_rank_time(better, costs) > (1 - LEAST_GAIN) * max_rank_time(self._counts, costs):
            return None
        self._counts = better
        self._on_change(better)
        return [range(start, stop) for start, stop in pairwise([0, *accumulate(better)])]


def _cuda_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's


def balance_slices(batch_slices: int, costs: Sequence[float]) -> list[int]:
    """Return the number of slices per rank that minimizes the time of the slowest rank; at least one each.

    Args:
        batch_slices: Number of batch slices, at least ``len(costs)``.
        costs: Time of one slice on each rank.

    >>> balance_slices(8, [1.0, 1.0]), balance_slices(8, [1.0, 3.0]), balance_slices(8, [1.0, 100.0])
    ([4, 4], [6, 2], [7, 1])
    """
    counts = [1] * len(costs)
    for _ in range(batch_slices - len(costs)):
        # Greedy is optimal here: give the next slice to the rank that would finish first with it.
        counts[min(range(len(costs)), key=lambda rank: (counts[rank] + 1) * costs[rank])] += 1
    return counts


def max_rank_time(counts: Sequence[int], costs: Sequence[float]) -> float:
    """Return the time of the slowest rank, in the unit of ``costs``.

    >>> max_rank_time([6, 2], [1.0, 3.5])
    7.0
    """
    return max(count * cost for count, cost in zip(counts, costs, strict=True))
