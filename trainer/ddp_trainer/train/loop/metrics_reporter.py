"""What the metrics hear of each step: samples and phases, loss and rate, and the work that the model took."""

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
"""Norm and scale are told no more often than this: where they are on a GPU, they are fetched from there."""


class MetricsReporter:
    """Of one rank; the numbers of the whole job are shown from rank 0, and gathered there alone."""

    def __init__(self, recorder: RankRecorder, phases: StepTimer, clock: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._phases = phases
        self._clock = clock
        self._told_at = -math.inf
        self._tokens = self._flops = 0

    def begin(self, model: nn.Module, plan: BatchPlan, config: Config) -> None:
        """Steps of this model come; what a sample takes is counted where the model says so."""
        self._recorder.planned(plan.total_steps)
        if (again := recomputed_ratio(model, config)) is not None:
            self._recorder.recomputed(again)
        self._tokens, self._flops = tokens(model) or 0, flops(model) or 0

    def step(self, step: int, epoch: int, samples: int, *, loss: float, rate: float, is_finite: bool) -> None:
        """A step was committed, this rank's share of which was ``samples``."""
        self._phases.report(self._recorder, step=step, epoch=epoch, samples=samples)
        self._recorder.progress(loss, rate)
        if self._tokens or self._flops:
            self._recorder.work(samples * self._tokens, samples * self._flops)
        if not is_finite:
            self._recorder.skipped_step()

    def gradients(self, optimization: OptimizerWrapper) -> None:
        """Once in a while, how large the gradients of the step just done were."""
        now = self._clock()
        if now - self._told_at >= GRADIENT_SECONDS:
            self._told_at = now
            scale = optimization.loss_scale
            self._recorder.gradients(optimization.norm, None if scale == 1.0 else scale)
