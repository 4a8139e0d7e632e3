"""Outcome of a run in this process.

:class:`Outcome` holds the summary and the exit code. :func:`summarize` builds the
:class:`~ddp_trainer.train.checkpoint.summary.Summary`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_trainer.train.checkpoint.summary import Result, Summary
from ddp_trainer.train.utils.errors import CheckpointNotWritten

if TYPE_CHECKING:
    from ddp_trainer.train.data.batch_plan import BatchPlan
    from ddp_trainer.train.data.sample_tracker import SampleTracker
    from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
    from ddp_trainer.train.loop.run_context import RunContext


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run in this process."""

    summary: Summary
    exit_code: int
    """0 on success; 143 after a requested stop, 130 after Ctrl-C."""
    error: CheckpointNotWritten | None = None
    """Set if the run is complete but its last state is not on any disk."""


def summarize(
    result: Result,
    ground: RunContext,
    plan: BatchPlan,
    ledger: SampleTracker,
    history: GoodputTracker,
    *,
    step: int,
    loss: float | None,
    metrics: Mapping[str, float],
) -> Summary:
    """Build the summary of a run.

    Args:
        result: The result of the run.
        ground: The context of the run.
        plan: The plan of the steps.
        ledger: The account of samples.
        history: The account of time and lost steps.
        step: Number of committed steps.
        loss: Mean loss of the last step; None before the first step.
        metrics: Metrics on the test samples.
    """
    config, env, watch = ground.config, ground.around.env, ground.watch
    return Summary(
        result=result,
        task=ground.task.name,
        steps=step,
        epochs=round(step / plan.steps_per_epoch, 4),
        accuracy=metrics.get("accuracy"),
        loss=metrics.get("loss", loss),
        metrics=metrics,
        best=watch.best_of_run(),
        stopped_early=watch.has_waited_enough and step < plan.total_steps,
        samples_lost=ledger.lost,
        samples_repeated=ledger.repeated,
        samples_skipped=ledger.skipped,
        skipped_steps=ground.guard.skipped,
        rollbacks=ground.guard.rollbacks,
        restarts=dict(env.restarts),
        **history.summary(),
        world_size=ground.around.group.world_size,
        global_batch=config.global_batch,
        shards=plan.shards,
        seed=config.seed,
        generation=env.generation,
    )
