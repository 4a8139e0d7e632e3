"""Steps of a job on a cluster, read from the logs of its pods while they run.

:class:`StepRecorder` watches the pods of a job and follows the log of each from its start to the end of its container.
So it has the last steps of a pod that is deleted or evicted, whose log nothing can read afterwards.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from bench.harness import CannotMeasure
from kubectl_ddp.backends.cluster.http.api import collection
from kubectl_ddp.backends.cluster.read.reflector import Reflector
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import epoch
from kubectl_ddp.util.concurrency import Stop

if TYPE_CHECKING:
    from bench.drivers.cluster_runs import TrainerRun

Json = dict[str, Any]

POLL_SECONDS: Final = 0.05
LATE_SECONDS: Final = 1.0
"""Time for lines of other pods to arrive after one of the same moment."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One step, as a rank reported it."""

    time: float
    """Unix time of the line."""
    world: int
    began: float
    """Unix time at which its worker group reported its start."""
    step: int = 0
    """Number of the step."""


def events_of(lines: Iterable[str]) -> Iterator[tuple[float, Json]]:
    """Yield the time and the content of each event in lines with timestamps."""
    for line in lines:
        stamp, _, text = line.partition(" ")
        begins = text.find('{"event"')
        if begins >= 0:
            yield epoch(stamp) or 0.0, json.loads(text[begins:])


@dataclass(frozen=True, slots=True, order=True)
class Pause:
    """Time without a step."""

    seconds: float
    begin: float
    """Unix time of the last step before it."""


def longest_pause(steps: Sequence[Seen], begin: float, end: float) -> Pause:
    """Return the longest time without a step in a span. A step before the span counts as the start of a pause.

    >>> longest_pause([Seen(1.0, 2, 0.0), Seen(3.0, 2, 0.0), Seen(9.0, 2, 0.0)], 2.5, 8.0)
    Pause(seconds=5.0, begin=3.0)
    """
    first = max((seen.time for seen in steps if seen.time < begin), default=begin)
    times = [first, *(seen.time for seen in steps if begin <= seen.time <= end), end]
    return max(Pause(later - sooner, sooner) for sooner, later in itertools.pairwise(times))


def repeated_steps(steps: Iterable[Seen]) -> int:
    """Return how many steps were taken again.

    >>> repeated_steps([Seen(1.0, 2, 0.0, 5), Seen(2.0, 2, 0.0, 6), Seen(3.0, 1, 2.5, 6)])
    1
    """
    numbers = [seen.step for seen in steps]
    return len(numbers) - len(set(numbers))


class StepRecorder:
    """All steps of one job, and the summaries that its pods print at their end."""

    def __init__(self, run: TrainerRun) -> None:
        self._run = run
        self._stop = Stop()
        pods = collection("v1", "pods", run.backend.namespace)
        self._pods = Reflector(run.api, pods, labelSelector=run.selector)
        self._threads: dict[str, threading.Thread] = {}
        self._steps: list[Seen] = []
        self.summaries: list[Json] = []
        self.failures: list[DdpError] = []
        """Logs that ended early."""

    def __enter__(self) -> Self:
        """Start to follow the pods that exist, and later ones."""
        self._pods.read()
        self._read_new_pods()
        self._watch = threading.Thread(target=self._pods.run, args=(self._read_new_pods,), daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all threads."""
        self._pods.stop()
        self._stop.request()
        for thread in (self._watch, *self._threads.values()):
            thread.join()

    def _read_new_pods(self) -> None:
        for pod in self._pods.objects():
            if pod["metadata"]["uid"] not in self._threads:
                thread = threading.Thread(target=self._read_logs, args=(pod,), daemon=True)
                self._threads[pod["metadata"]["uid"]] = thread
                thread.start()

    def _read_logs(self, pod: Json) -> None:
        try:
            lines = self._run.backend.logs(pod, follow=True, timestamps=True, stop=self._stop)
            for seen in self._run.read(self._without_summaries(events_of(lines))):
                self._steps.append(seen)
        except DdpError as error:
            self.failures.append(error)

    def _without_summaries(self, events: Iterable[tuple[float, Json]]) -> Iterator[tuple[float, Json]]:
        for moment, event in events:
            if event["event"] == "summary":
                self.summaries.append(event["summary"])
            else:
                yield moment, event

    def steps(self) -> list[Seen]:
        """Return all steps until now, by time."""
        return sorted(self._steps.copy(), key=lambda seen: seen.time)

    def steps_until(self, moment: float, seconds: float) -> list[Seen]:
        """Return all steps once those before a moment have been read. Raises CannotMeasure if the job stopped."""
        self.wait_for_step(moment, seconds)
        time.sleep(LATE_SECONDS)
        return self.steps()

    def wait_for_step(self, after: float, seconds: float, *, world: int | None = None) -> Seen:
        """Return the first step after a moment, by a group of ``world`` ranks if given. Raises CannotMeasure."""
        deadline, checked = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            for seen in itertools.islice(self._steps, checked, None):
                checked += 1
                if seen.time > after and world in {None, seen.world}:
                    return seen
            time.sleep(POLL_SECONDS)
        wanted = "" if world is None else f" in a world of {world}"
        raise CannotMeasure(f"{self._run.name} took no step{wanted} within {seconds:g} s.")

    def suspend_and_read_summary(self, seconds: float) -> Json:
        """Suspend the job, and return the summary that it prints. Raises CannotMeasure.

        The store outlives the workers of a suspended job, but not of one that is deleted. So all ranks end in order.
        """
        self._run.ddp("suspend", self._run.name)
        deadline = time.monotonic() + seconds
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        if not self.summaries:
            raise CannotMeasure(f"{self._run.name} printed no summary. Logs that were not read: {self.failures}")
        return max(self.summaries, key=lambda summary: int(summary["steps"]))
