"""Outcome of a run in this process.

:class:`Outcome` holds the summary and the exit code. :func:`summarize` builds the
:class:`~ddp_trainer.train.checkpoint.summary.Summary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_trainer.train.checkpoint.summary import Result, Summary
from ddp_trainer.train.utils.errors import CheckpointNotWritten

if TYPE_CHECKING:
    from ddp_trainer.train.loop.train_state import TrainState


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run in this process."""

    summary: Summary
    exit_code: int
    """0 on success; 143 after a requested stop, 130 after Ctrl-C."""
    error: CheckpointNotWritten | None = None
    """Set if the run is complete but its last state is not on any disk."""


def summarize(result: Result, state: TrainState, *, loss: float | None) -> Summary:
    """Build the summary of a run.

    Args:
        result: The result of the run.
        state: The training state; only its data position is needed.
        loss: Mean loss of the last step; None before the first step.
    """
    context, plan, tracker = state.context, state.plan, state.tracker
    config, env, watch = context.config, context.process.env, context.watch
    metrics = (watch.metrics_after(state.step) or {}) if result is Result.SUCCEEDED else {}
    return Summary(
        result=result,
        task=context.task.name,
        steps=state.step,
        epochs=round(state.step / plan.steps_per_epoch, 4),
        accuracy=metrics.get("accuracy"),
        loss=metrics.get("loss", loss),
        metrics=metrics,
        best=watch.best_of_run(),
        stopped_early=watch.should_stop and state.step < plan.total_steps,
        samples_lost=tracker.lost,
        samples_repeated=tracker.repeated,
        samples_skipped=tracker.skipped,
        skipped_steps=context.guard.skipped,
        rollbacks=context.guard.rollbacks,
        restarts=dict(env.restarts),
        **state.history.summary(),
        world_size=context.process.group.world_size,
        global_batch=config.global_batch,
        batch_slices=plan.batch_slices,
        seed=config.seed,
        generation=env.generation,
    )
