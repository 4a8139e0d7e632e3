"""Reporting of a run's events to metrics, progress output and log files.

:class:`CallbackList` receives each event from :class:`~ddp_trainer.train.trainer.Trainer`. It passes the event to the
recorder of metrics, to the progress output and to the loggers of curves.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.evaluation.task_report import shown
from ddp_trainer.train.loop.build_components import TrainState
from ddp_trainer.train.loop.metrics_reporter import MetricsReporter
from ddp_trainer.train.loop.process_context import ProcessContext
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.step_consensus import StepDecision
from ddp_trainer.train.models.registry import flops
from ddp_trainer.train.observability.console import Evaluated
from ddp_trainer.train.observability.loggers import Reports, open_reports
from ddp_trainer.train.observability.run_banner import on_small_data, started


class CallbackList:
    """Reporters of one rank; only rank 0 writes curves, so another process takes over when rank 0 moves to it."""

    _around: ProcessContext
    _telling: MetricsReporter

    def __init__(self) -> None:
        self._reports = Reports([])
        self._is_first: bool | None = None
        self.loss: float | None = None
        """Mean loss of the last step with a finite loss, else of the first step; None before the first step."""

    def enter(self, ground: RunContext) -> None:
        """Switch to the process context of a new worker group, and open or close the curves accordingly."""
        self._around, self._telling = ground.around, MetricsReporter(ground.around.recorder, ground.phases)
        is_first = ground.around.env.rank == 0
        if is_first is not self._is_first:
            self._reports.close()
            self._reports = open_reports(ground.config, ground.around.env)
        self._is_first = is_first

    def expect(self, ground: RunContext, plan: BatchPlan) -> None:
        """Announce the model and its planned steps to the metrics."""
        self._telling.begin(ground.model, plan, ground.config)

    def begin(self, step: int, ground: RunContext, plan: BatchPlan) -> None:
        """Report that training starts or resumes after ``step`` steps.

        Raises:
            BadConfig: A report that a flag requests cannot be written.
        """
        progress, group = self._around.progress, self._around.group
        progress.begin(step)
        self._reports.begin(step)
        progress.tell(started(ground.task.name, ground.model, plan, group, step=step, flops=flops(ground.model)))
        if remark := on_small_data(plan):
            progress.note(remark)

    def rewind(self, step: int, lost: int, why: str) -> None:
        """Report a rollback.

        Args:
            step: Number of committed steps after the rollback.
            lost: Number of steps that are repeated.
            why: The reason, a sentence.
        """
        self._reports.rewind(step)
        self._around.progress.note(f"{why} Rolled back to step {step}: steps to do again: {lost}.")

    def step(self, step: int, kept: TrainState, verdict: StepDecision, *, own: int) -> None:
        """Report the committed step number ``step``, counted from 1, with ``own`` samples of this rank."""
        plan, optimization = kept.plan, kept.optimization
        epoch, rate = plan.epoch_of(step - 1), optimization.learning_rate
        if verdict.is_finite or self.loss is None:
            self.loss = verdict.loss / verdict.samples
        self._telling.step(step, epoch, own, loss=self.loss, rate=rate, is_finite=verdict.is_finite)
        if self._around.group.rank == 0:
            self._telling.gradients(optimization)
        self._around.progress.step(
            step=step,
            steps=plan.total_steps,
            epoch=epoch + 1,
            samples=verdict.samples,
            loss=self.loss,
            learning_rate=rate,
        )
        self._reports.step(step, epoch, {"loss": self.loss, "learning_rate": rate})

    def evaluated(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation after ``step`` steps, in an epoch counted from 0."""
        self._around.recorder.evaluated(metrics.get("loss", float("nan")), metrics.get("accuracy", float("nan")))
        self._around.progress.tell(Evaluated(epoch=epoch + 1, step=step, metrics=metrics))
        self._reports.evaluated(step, epoch, metrics)

    def show(self, ground: RunContext, *, together: bool) -> None:
        """Print the task's report on the trained model; with ``together`` every rank must call it."""
        is_first = self._around.group.rank == 0
        if is_first or together:
            text = shown(ground.task, ground.model)
            if text is not None and is_first:
                self._around.progress.note(text)

    def close(self) -> None:
        """Close the loggers, so that the curves are complete on disk."""
        self._reports.close()
