"""When what happened to the worker group of a pod: for its workers, who were not there to see it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from ddp_trainer.common.constants import Env, Moment


class Moments:
    """Unix times, to be compared with those that other pods have left beside the checkpoints."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """The launcher starts now."""
        self._clock = clock
        self._times = {Moment.LAUNCHED: clock()}
        self.groups = 0
        """How many worker groups this pod has been in."""

    def reached(self, moment: Moment) -> None:
        """It is now."""
        self._times[moment] = self._clock()
        self.groups += moment is Moment.FORMED

    @property
    def times(self) -> Mapping[Moment, float]:
        """When what was reached last; what was not is missing."""
        return self._times

    @property
    def environment(self) -> dict[str, str]:
        """What a worker is told."""
        return {Env.MOMENTS.value: json.dumps(self._times)}
