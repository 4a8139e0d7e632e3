"""Digests of what each shard of each step consumes, worked out for many steps at once.

The ranks compare them in every step, and hashing 64 ids costs nearly what hashing 4,096 does: 25 us.
"""

from __future__ import annotations

from typing import Final

import torch

from ddp_trainer.train.plan import Plan, cut, hashes

_SAMPLES_AT_ONCE: Final = 1 << 14


class Digests:
    """:func:`ddp_trainer.train.plan.digest` of the shards of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = range(0)
        self._ends: list[list[int]] = []
        """Of each of the steps, sums of the hashes before each shard, and of all; from an offset of the step's own."""

    def shard(self, step: int, shard: int) -> int:
        """Of what a logical shard of the step consumes."""
        ends = self._of(step)
        return ends[shard + 1] - ends[shard]

    def batch(self, step: int) -> int:
        """Of what the step consumes."""
        ends = self._of(step)
        return ends[-1] - ends[0]

    def _of(self, step: int) -> list[int]:
        if step not in self._steps:
            self._work_out(step)
        return self._ends[step - self._steps.start]

    def _work_out(self, step: int) -> None:
        """This step and those that follow it with batches of the same length."""
        plan = self._plan
        length = len(plan.batch(step))
        # All steps of an epoch are of one length but the last, which may be shorter.
        alike = max(1, plan.samples // plan.global_batch - step % plan.steps_per_epoch)
        self._steps = range(step, step + min(alike, max(1, _SAMPLES_AT_ONCE // length)))
        ids = torch.cat([plan.batch(each) for each in self._steps])
        sums = torch.cat([torch.zeros(1, dtype=torch.int64), hashes(ids).cumsum(0)])
        within = torch.tensor([cut(length, plan.shards, shard).start for shard in range(plan.shards)] + [length])
        starts = torch.arange(len(self._steps)) * length
        self._ends = sums[starts.unsqueeze(1) + within].tolist()
