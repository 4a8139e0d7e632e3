"""A stopwatch that turns the course of any training loop into a rank's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ddp_trainer.common.constants import Phase
from ddp_trainer.process.recorder import RankRecorder

_PHASES: Final = tuple(Phase)


class Meter:
    """Measures the steps of one loop; made by :func:`ddp_trainer.metrics.attach.meter`.

    ::

        meter = attach.meter()
        for epoch in range(epochs):
            for inputs, targets in loader:
                meter.reached("data_wait")                  # all since the last step went into waiting for data
                loss = criterion(model(inputs), targets)
                meter.reached("forward")
                ...
                meter.step(samples=len(inputs), epoch=epoch)

    What no phase was named for is counted as ``other``. On a GPU these are the times at which work was handed over,
    not at which it was done.
    """

    def __init__(
        self, recorder: RankRecorder, *, first_step: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.recorder = recorder
        """For all else there is to tell: ``progress``, ``evaluated``, ``checkpoint_saved`` and so on."""
        self._clock = clock
        self._step = first_step
        self._seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._mark = clock()

    def reached(self, phase: str) -> None:
        """``phase`` ends here: the time since the last mark was spent in it; see
        :class:`~ddp_trainer.common.constants.Phase`.

        A word that names no phase counts as ``other``: this is no place to stop a training.
        """
        now = self._clock()
        self._seconds[phase if phase in self._seconds else Phase.OTHER] += now - self._mark
        self._mark = now

    def step(self, samples: int, epoch: int = 0) -> None:
        """A step ends here, in which this rank computed ``samples``."""
        self.reached(Phase.OTHER)
        self._step += 1
        self.recorder.step(self._step, epoch, samples, *self._seconds.values())
        for phase in _PHASES:
            self._seconds[phase] = 0.0
