"""Stopwatch that records the steps of any training loop as a rank's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.process.recorder import RankRecorder

_PHASES: Final = tuple(Phase)


class StepMeter:
    """Stopwatch of one loop, made by :func:`ddp_trainer.metrics.attach.meter`.

    ::

        meter = attach.meter()
        for epoch in range(epochs):
            for inputs, targets in loader:
                meter.end_phase("data_wait")                  # time since the last step was spent waiting for data
                loss = criterion(model(inputs), targets)
                meter.end_phase("forward")
                ...
                meter.step(samples=len(inputs), epoch=epoch)

    Time without a named phase counts as ``other``. On a GPU, phases measure when work was submitted, not when it was
    done.
    """

    def __init__(self, recorder: RankRecorder, clock: Callable[[], float] = time.perf_counter) -> None:
        self.recorder = recorder
        """Recorder for all other reports: ``progress``, ``evaluated``, ``checkpoint_saved`` and so on."""
        self._clock = clock
        self._step = 0
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._mark = clock()

    def end_phase(self, phase: str) -> None:
        """End ``phase``: the time since the last mark belongs to it.

        Args:
            phase: A value of :class:`~ddp_trainer.common.time_classes.Phase`. An unknown name counts as ``other``,
                because an error here must not stop the training.
        """
        now = self._clock()
        self._seconds[phase if phase in self._seconds else Phase.OTHER] += now - self._mark
        self._mark = now

    def step(self, samples: int, epoch: int = 0) -> None:
        """End a step in which this rank computed ``samples``."""
        self.end_phase(Phase.OTHER)
        self._step += 1
        self.recorder.step(self._step, epoch, samples, *self._seconds.values())
        for phase in _PHASES:
            self._seconds[phase] = 0.0
