"""Times of the events that led to a pod's worker group.

:class:`LifecycleTimes` records them in the launcher. The workers start later and read them from their environment.
"""

from __future__ import annotations

import json
import time

from ddp_trainer.common.constants import Env, LifecycleEvent
from ddp_trainer.common.process_start import process_start


class LifecycleTimes:
    """Unix times of launcher events, in seconds.

    They are comparable with the times that other pods have left beside the checkpoints.
    """

    def __init__(self) -> None:
        """Record the start of the launcher."""
        self.times = {LifecycleEvent.STARTED: process_start(), LifecycleEvent.LAUNCHED: time.time()}
        """The latest time of each event. Events that have not happened are missing."""
        self.groups = 0
        """Number of worker groups that this pod has been in."""

    def record_event(self, moment: LifecycleEvent) -> None:
        """Record the current time for an event."""
        self.times[moment] = time.time()
        self.groups += moment is LifecycleEvent.FORMED

    @property
    def environment(self) -> dict[str, str]:
        """Environment variable that passes the times to a worker."""
        return {Env.MOMENTS.value: json.dumps(self.times)}
