"""Where the time of a real job goes, over three kills, a suspension and a resize, as metrics and ``status`` tell."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.train.checkpoint.progress_file import _COUNTS, _RECORD, FILE
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.observe.scrape import observe, scrape
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.metrics_parser import Samples, parse
from tests.support.local_place import Place, Typed, all_run, condition, workers

TRAIN = (
    *("train", "--task", "digits", "--epochs", "4000", "--global-batch", "64", "--batch-slices", "4"),
    "--checkpoint-steps",
)
STEPS_AT_ONCE = 30


def processes(place: Place) -> dict[int, int]:
    """Of the ranks that live."""
    ranks = [one for pod in scrape(place, place.job("digits")).values() for one in pod.split(MetricLabel.RANK).items()]
    return {int(rank): int(one.value(Metric.RANK_PID) or 0) for rank, one in ranks if one.value(Metric.RANK_UP)}


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def all_told(place: Place) -> Iterator[Samples]:
    """Everything that pods which run tell, and not only what commands read."""
    for pod in termination_message.workers(place.job("digits").pods):
        if termination_message.is_running(pod):
            with suppress(Unreachable):
                yield parse(place.metrics(pod))


def lost_in(ledger: bytes) -> int:
    """Lost steps by the later one of the two places in which the trainer counts them."""
    later = max((ledger[place:] for place in (0, 64)), key=lambda record: _RECORD.unpack_from(record)[-1])
    _, lost, _ = _COUNTS.unpack_from(later, _RECORD.size)
    return int(lost)


class Watched:
    """What the metrics have told of the job's time so far; no state of it may ever fall."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._spent: dict[str, float] = {}

    def look(self) -> Samples | None:
        """What is told now by rank 0's pod, or by the later one where it has moved."""
        report = max(all_told(self._place), key=lambda pod: pod.total(Metric.JOB_TIME), default=None)
        if report is None or not report.value(Metric.JOB_START):
            return None
        spent = report.by(MetricLabel.STATE, Metric.JOB_TIME)
        assert {state for state, before in self._spent.items() if spent[state] < before} == set()
        self._spent = spent
        return report

    def goes_on(self, generation: int) -> Samples:
        """Once a later group has trained for some steps."""
        first: int | None = None
        while True:
            report, state = self.look(), observe(self._place, self._place.job("digits"))
            if report is not None and (state.generation or 0) > generation and state.step is not None:
                first = state.step if first is None else first
                if state.step >= first + STEPS_AT_ONCE:
                    return report
            time.sleep(0.1)

    def catches_up(self) -> Samples:
        """Once what is told is all but 1 % of the time that has passed; it is never more."""
        while True:
            samples = self.look()
            assert samples is not None
            total, elapsed = samples.total(Metric.JOB_TIME), time.time() - (samples.value(Metric.JOB_START) or 0.0)
            assert total <= elapsed
            if total >= 0.99 * elapsed:
                return samples

    @property
    def generation(self) -> int:
        return observe(self._place, self._place.job("digits")).generation or 0


@pytest.mark.timeout(300)
def test_the_states_of_a_jobs_time_add_up_over_three_kills_a_suspension_and_a_resize(
    place: Place, typed: Typed
) -> None:
    submitted = time.time()
    words = ("--module", "ddp_trainer", "--name", "digits", "--nnodes", "1:3", "--nproc", "1", "--", *TRAIN, "100")
    assert typed("submit", "--local", *words).returncode == 0
    wait_for(place, "digits", parse_wait_condition("step=50"), timeout=120)
    watched, trained = Watched(place), time.time()

    generation = watched.generation
    assert typed("scale", "digits", "--nnodes", "2").returncode == 0
    place.until(all_run(2))
    watched.goes_on(generation)

    def after_killing(*pids: int) -> Samples:
        before = watched.generation
        kill(*pids)
        return watched.goes_on(before)

    after_killing(processes(place)[max(processes(place))])
    after_killing(*processes(place).values())
    after_killing(parent(processes(place)[0]))

    assert typed("suspend", "digits").returncode == 0
    place.until(lambda shown: condition("Suspended")(shown) and not workers(shown))
    assert typed("resume", "digits").returncode == 0
    report = watched.goes_on(0)

    assert submitted <= (report.value(Metric.JOB_START) or 0.0) <= trained
    report = watched.catches_up()
    spent = report.by(MetricLabel.STATE, Metric.JOB_TIME)
    assert {state for state, seconds in spent.items() if seconds > 0} >= {
        *(JobTime.PRODUCTIVE, JobTime.STARTUP, JobTime.RENDEZVOUS, JobTime.CHECKPOINT_LOAD),
        *(JobTime.RESTART, JobTime.ELASTIC_RESIZE, JobTime.SUSPENDED),
    }
    lost = report.value(Metric.LOST_STEPS)
    (odometer,) = place.files().volumes.rglob(FILE)
    assert lost == lost_in(odometer.read_bytes())
    assert lost > 0
    state: dict[str, Any] = json.loads(typed("status", "digits", "-o", "json").stdout)
    productive = spent[JobTime.PRODUCTIVE] - (report.value(Metric.LOST_PROGRESS) or 0.0)
    assert state["goodput"] == pytest.approx(productive / (sum(spent.values()) - spent[JobTime.SUSPENDED]), abs=0.1)
