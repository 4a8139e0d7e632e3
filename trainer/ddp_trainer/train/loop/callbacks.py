"""Reporting of a run's events to metrics, progress output and log files.

:class:`CallbackList` receives each event from :class:`~ddp_trainer.train.trainer.Trainer`. It passes the event to the
recorder of metrics, to the progress output and to the loggers of curves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import nn

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan, StepPlan, shares
from ddp_trainer.train.data.task import SupportsShow, Task
from ddp_trainer.train.loop.run_context import ProcessContext, RunContext
from ddp_trainer.train.loop.train_state import TrainState
from ddp_trainer.train.observability.console import EvaluationCompleted, Mode, Progress, Started, StepCommitted
from ddp_trainer.train.observability.loggers import Reports, open_reports
from ddp_trainer.train.observability.profiling import StepProfiler, open_profile
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.transforms.hfu import flops, recompute_ratio, tokens

LIVE_SECONDS: Final = 0.1
"""Minimum seconds between two changes of the live line."""
GRADIENT_SECONDS: Final = 1.0
"""Minimum seconds between two reports of gradient norm and loss scale, which must be copied from a GPU."""


class StepLines:
    """Shows some of the committed steps in the progress output.

    Plain and JSON output have every ``every_steps``-th step, or a step at most every ``every_seconds`` seconds. The
    live line changes at most every :data:`LIVE_SECONDS`.
    """

    def __init__(
        self, every_seconds: float, every_steps: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` returns monotonic seconds."""
        self._every_seconds = every_seconds
        self._every_steps = every_steps
        self._clock = clock
        self._begun = self._shown = clock()
        self._first_step = self._samples = 0

    def begin(self, step: int) -> None:
        """Start training after ``step`` committed steps; rates and times count from here."""
        self._begun = self._shown = self._clock()
        self._first_step = step

    def step(
        self, progress: Progress, *, step: int, steps: int, epoch: int, samples: int, loss: float, learning_rate: float
    ) -> None:
        """Record that step ``step`` of ``steps`` was committed, with ``samples`` samples over all ranks."""
        self._samples += samples
        if progress.mode is Mode.SILENT:
            return
        now = self._clock()
        if self._every_steps is not None and progress.mode is not Mode.LIVE:
            is_due = step % self._every_steps == 0
        else:
            is_due = now - self._shown >= (LIVE_SECONDS if progress.mode is Mode.LIVE else self._every_seconds)
        if not is_due:
            return
        per_step = (now - self._begun) / max(step - self._first_step, 1)
        progress.show_event(
            StepCommitted(
                step=step,
                steps=steps,
                epoch=epoch,
                loss=loss,
                learning_rate=learning_rate,
                samples_per_second=self._samples / max(now - self._shown, 1e-9),
                eta_seconds=per_step * (steps - step),
            )
        )
        self._samples = 0
        self._shown = now


class CallbackList:
    """Reporters of one rank; only rank 0 writes curves, so another process takes over when rank 0 moves to it."""

    _process: ProcessContext
    _timer: StepTimer

    def __init__(self, config: Config) -> None:
        self._lines = StepLines(config.log_seconds, config.log_steps)
        self.profile: StepProfiler | None = None
        """Profiler of this rank, which the trainer calls at the beginning of each step; None without ``--profile``."""
        self._reports = Reports()
        self._is_first: bool | None = None
        self._is_finished = False
        self._tokens = self._flops = 0
        self._position = 0, 0
        self._recorded_gradients_at = -math.inf
        self.loss: float | None = None
        """Mean loss of the last step with a finite loss, else of the first step; None before the first step."""

    def enter(self, context: RunContext) -> None:
        """Switch to the process context of a new worker group, and open or close the curves accordingly."""
        self._process, self._timer = context.process, context.timer
        is_first = context.process.env.rank == 0
        if self._is_first is None:
            self.profile = open_profile(context.config, context.process.env)
        if self._is_first is False:
            context.process.recorder.take_user_values()  # of its time as another rank
        if is_first is not self._is_first:
            self._reports.close(is_over=False, waits=False)
            progress = context.process.progress
            self._reports = open_reports(
                context.config, context.process.env, warn=progress.warn_rank, note=progress.log_message
            )
        self._is_first = is_first

    def expect(self, state: TrainState) -> None:
        """Announce the model and its planned steps to the metrics."""
        recorder, model = self._process.recorder, state.context.model
        recorder.put(Metric.STEPS_PLANNED, state.plan.total_steps)
        if (ratio := recompute_ratio(model, state.context.config)) is not None:
            recorder.put(Metric.RECOMPUTED, ratio)
        self._tokens, self._flops = tokens(model) or 0, flops(model) or 0

    def begin(self, state: TrainState) -> None:
        """Report that training starts or resumes.

        Raises:
            BadConfig: A report that a flag requests cannot be written.
        """
        progress, group, plan = self._process.progress, self._process.group, state.plan
        task, model, step = state.context.task, state.context.model, state.step
        self._lines.begin(step)
        self._reports.begin(step, state.logger_run_id)
        self._position = step, plan.epoch_of(max(0, step - 1))
        sizes = shares(min(plan.global_batch, plan.samples), plan.batch_slices, group.data_size)
        progress.show_event(
            Started(
                task=task.name,
                world_size=group.world_size,
                backend=group.backend,
                device=str(group.device),
                batch_slices=plan.batch_slices,
                global_batch=plan.global_batch,
                per_rank=str(sizes[0]) if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}",
                samples=plan.samples,
                steps_per_epoch=plan.steps_per_epoch,
                steps=plan.total_steps,
                resumed_step=step,
                weights=sum(weight.numel() for weight in model.parameters()),
                flops_per_sample=flops(model),
            )
        )
        if remark := on_small_data(plan):
            progress.log_message(remark)

    def rollback(self, step: int, lost: int, why: str) -> None:
        """Report a rollback.

        Args:
            step: Number of committed steps after the rollback.
            lost: Number of steps that are repeated.
            why: The reason, a sentence.
        """
        self._reports.rollback(step)
        self._process.progress.log_message(f"{why} Rolled back to step {step}: steps to do again: {lost}.")

    def step(self, state: TrainState, step_plan: StepPlan, *, loss: float, is_finite: bool, own_samples: int) -> None:
        """Report the last committed step, with the number of samples of this rank.

        Args:
            state: State after the step.
            step_plan: The samples of the step.
            loss: Mean loss of the step.
            is_finite: The loss and all gradients are finite.
            own_samples: Number of samples of this rank in the step.
        """
        step, optimizer, epoch, rate = state.step, state.optimizer, step_plan.epoch, state.optimizer.learning_rate
        if is_finite or self.loss is None:
            self.loss = loss
        recorder = self._process.recorder
        self._timer.report(recorder, step=step, epoch=epoch, samples=own_samples)
        recorder.progress(self.loss, rate)
        if self._tokens or self._flops:
            recorder.work(own_samples * self._tokens, own_samples * self._flops)
        if not is_finite:
            recorder.add(Metric.SKIPPED_STEPS)
        if self._process.group.rank == 0:
            self._record_gradients(optimizer)
        self._lines.step(
            self._process.progress,
            step=step,
            steps=state.plan.total_steps,
            epoch=epoch + 1,
            samples=step_plan.samples,
            loss=self.loss,
            learning_rate=rate,
        )
        if self._reports:
            self._position = step, epoch
            self._reports.write(step, epoch, "train", {"loss": self.loss, "learning_rate": rate})
            self._report_user_values()

    def _report_user_values(self) -> None:
        """Write the values that the script has reported since the last call to the curves, at the last step."""
        if self._reports and (values := self._process.recorder.take_user_values()):
            self._reports.write(*self._position, "user", values)

    def _record_gradients(self, optimizer: OptimizerWrapper) -> None:
        """Report gradient norm and loss scale of the last step, at most every :data:`GRADIENT_SECONDS` seconds."""
        now = time.monotonic()
        if now - self._recorded_gradients_at >= GRADIENT_SECONDS:
            self._recorded_gradients_at = now
            scale = optimizer.loss_scale
            self._process.recorder.gradients(optimizer.norm, None if scale is None else scale.value)

    def record_evaluation(self, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation of this state."""
        step, epoch = state.step, state.plan.epoch_of(state.step - 1)
        self._process.recorder.record_evaluation(
            metrics.get("loss", float("nan")), metrics.get("accuracy", float("nan"))
        )
        self._process.progress.show_event(EvaluationCompleted(epoch=epoch + 1, step=step, metrics=metrics))
        self._reports.write(step, epoch, "test", metrics)

    def show(self, state: TrainState) -> None:
        """Print the task's report at the end of the run; every rank must call it if the state is distributed."""
        self._is_finished = True
        is_first = self._process.group.rank == 0
        if is_first or state.sharded is not None:
            text = model_report(state.context.task, state.context.model)
            if text is not None and is_first:
                self._process.progress.log_message(text)

    def close(self, *, has_failed: bool) -> None:
        """Complete the curves on disk and, unless the run has failed, the trace of ``--profile``."""
        if not has_failed:  # after a failure of the GPU, a tensor cannot be read
            self._report_user_values()
        self._reports.close(is_over=self._is_finished, waits=not has_failed)
        if self.profile is not None and not has_failed:
            self.profile.close()


def model_report(task: Task, model: nn.Module) -> str | None:
    """Return the task's report on the model; None if the task has none. An error becomes the report."""
    if not isinstance(task, SupportsShow):
        return None
    trains = model.training
    model.eval()
    try:
        with torch.no_grad():
            return task.show(model)
    except Exception as err:  # noqa: BLE001 - the user's code may raise anything, and the run is over and saved
        return f"What was learnt could not be shown: {err!r}."
    finally:
        model.train(trains)


def on_small_data(plan: BatchPlan) -> str:
    """Return a message if the data set has fewer samples than a global batch, else an empty string."""
    if plan.endless or plan.samples >= plan.global_batch:
        return ""
    return (
        f"The data set has {plan.samples} samples, fewer than the global batch of {plan.global_batch}: "
        "every epoch is one step of all of them."
    )
