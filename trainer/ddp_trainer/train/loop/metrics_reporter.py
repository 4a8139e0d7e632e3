"""Per-step metrics of a rank: samples, phases, loss, learning rate, tokens and FLOPs.

:class:`MetricsReporter` passes them to the :class:`~ddp_trainer.process.recorder.RankRecorder`. It is called by
:class:`~ddp_trainer.train.loop.callbacks.CallbackList`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from torch import nn

from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.models.registry import flops, tokens
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.transforms.hfu import recomputed_ratio

GRADIENT_SECONDS: Final = 1.0
"""Minimum seconds between two reports of gradient norm and loss scale, which must be copied from a GPU."""


class MetricsReporter:
    """Reporter of one rank; only rank 0 collects and reports numbers of the whole job."""

    def __init__(self, recorder: RankRecorder, phases: StepTimer, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._phases = phases
        self._clock = clock
        self._told_at = -math.inf
        self._tokens = self._flops = 0

    def begin(self, model: nn.Module, plan: BatchPlan, config: Config) -> None:
        """Prepare for the steps of this model; tokens and FLOPs are counted if the model defines them."""
        self._recorder.planned(plan.total_steps)
        if (again := recomputed_ratio(model, config)) is not None:
            self._recorder.recomputed(again)
        self._tokens, self._flops = tokens(model) or 0, flops(model) or 0

    def step(self, step: int, epoch: int, samples: int, *, loss: float, rate: float, is_finite: bool) -> None:
        """Report a committed step, with ``samples`` samples of this rank."""
        self._phases.report(self._recorder, step=step, epoch=epoch, samples=samples)
        self._recorder.progress(loss, rate)
        if self._tokens or self._flops:
            self._recorder.work(samples * self._tokens, samples * self._flops)
        if not is_finite:
            self._recorder.skipped_step()

    def gradients(self, optimization: OptimizerWrapper) -> None:
        """Report gradient norm and loss scale of the last step, at most every :data:`GRADIENT_SECONDS` seconds."""
        now = self._clock()
        if now - self._told_at >= GRADIENT_SECONDS:
            self._told_at = now
            scale = optimization.loss_scale
            self._recorder.gradients(optimization.norm, None if scale == 1.0 else scale)
