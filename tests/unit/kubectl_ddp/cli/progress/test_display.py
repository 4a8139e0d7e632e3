"""Progress of a job while a command waits: its steps, its remaining time, and why it is stuck."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest

from kubectl_ddp.cli.internal.progress import (
    LONGEST_PAUSE_SECONDS,
    STALL_SECONDS,
    WINDOW_SECONDS,
    ProgressDisplay,
    ProgressLine,
    StepRate,
)
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects
from kubectl_ddp.status.job_state import JobState, State, job_state
from tests.support.clocks import Clock
from tests.support.kube_objects import job, pod, snapshot, waiting
from tests.support.scripted_backend import ScriptedBackend

NO_IMAGE = snapshot(job("Created"), pod(0, waiting("ImagePullBackOff", "example.com/no:1 not found")))
PENDING = job_state(NO_IMAGE, {})
TRAINING = replace(PENDING, state=State.RUNNING, steps_planned=1000, generation=1)


class Diagnosed(ScriptedBackend):
    """A place that counts the diagnoses of its job, each of which reads the events once."""

    def __init__(self, *, answers: bool = True) -> None:
        super().__init__([NO_IMAGE])
        self.diagnoses = 0
        self.answers = answers

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        self.diagnoses += 1
        if not self.answers:
            raise Unreachable("It does not answer.")
        return super().related_objects(job, kinds)


@dataclass
class Shown:
    """A display, and the lines that it showed."""

    backend: Diagnosed = field(default_factory=Diagnosed)
    clock: Clock = field(default_factory=lambda: Clock(0.0))
    lines: list[ProgressLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.display = ProgressDisplay(self.backend, self, self.clock)

    def show(self, line: ProgressLine) -> None:
        self.lines.append(line)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    def after(self, seconds: float, state: JobState = PENDING) -> ProgressLine:
        """The line ``seconds`` later, once a diagnosis that this began is done."""
        self.clock.now += seconds
        self.display.update(state)
        for thread in threading.enumerate():
            if thread.name == "standstill":
                thread.join()
        return self.lines[-1]


def test_the_cause_of_a_standstill_appears_after_15_seconds_and_goes_with_the_next_change() -> None:
    shown = Shown()
    assert shown.after(0).cause == ""
    assert shown.after(STALL_SECONDS - 1).cause == ""
    shown.after(1)
    assert shown.backend.diagnoses == 1
    assert "ImagePullBackOff" in shown.after(1).cause
    assert shown.after(1, replace(TRAINING, step=1)).cause == ""


def test_a_job_that_moves_is_not_diagnosed() -> None:
    shown = Shown()
    for step in range(100):
        shown.after(STALL_SECONDS - 1, replace(TRAINING, step=step))
    assert shown.backend.diagnoses == 0


def test_a_long_standstill_is_diagnosed_ever_more_rarely() -> None:
    shown = Shown()
    times = []
    for _ in range(2000):
        before = shown.backend.diagnoses
        shown.after(1)
        times += [shown.clock.now] if shown.backend.diagnoses > before else []
    assert times[:4] == pytest.approx([16, 31, 61, 121], abs=1)
    assert all(later - earlier <= LONGEST_PAUSE_SECONDS for earlier, later in itertools.pairwise(times))


def test_without_an_answer_there_is_no_cause_and_the_wait_goes_on() -> None:
    shown = Shown(Diagnosed(answers=False))
    for _ in range(40):
        assert shown.after(1).cause == ""
    assert shown.backend.diagnoses == 2


def test_pods_that_end_stop_answering_and_their_last_step_stays() -> None:
    shown = Shown()
    last = replace(TRAINING, step=1000, world_size=2)
    text = shown.after(1, last).text
    for less in (replace(last, steps_planned=None), replace(TRAINING, steps_planned=None)):
        assert shown.after(1, less).text == text
    restarting = replace(TRAINING, state=State.RESTARTING, steps_planned=None)
    assert shown.after(1, restarting).phase == "restarting"
    assert shown.after(1, replace(restarting, state=State.RUNNING)).text != text, "another group has begun"


def test_the_remaining_time_is_the_rate_of_committed_steps() -> None:
    pace = StepRate()
    report = [pace.eta_seconds(replace(TRAINING, step=step, eta_seconds=7.0), 2.0 * step) for step in range(100)]
    assert report[0] == 7.0, "the ranks' own figure, until steps have been counted for some seconds"
    assert report[-1] == pytest.approx(2.0 * 901)


def test_the_rate_is_that_of_the_last_minute() -> None:
    pace = StepRate()
    for step in range(100):
        pace.eta_seconds(replace(TRAINING, step=step), float(step))
    for step in range(100, 200):
        eta = pace.eta_seconds(replace(TRAINING, step=step), 100.0 + 3.0 * (step - 100))
    assert eta == pytest.approx(3.0 * 801)
    assert WINDOW_SECONDS < 200


@pytest.mark.parametrize("later", [replace(TRAINING, step=3), replace(TRAINING, step=60, generation=2)])
def test_another_group_begins_its_own_rate(later: JobState) -> None:
    pace = StepRate()
    for step in range(50):
        pace.eta_seconds(replace(TRAINING, step=step), float(step))
    assert pace.eta_seconds(replace(later, eta_seconds=42.0), 300.0) == 42.0


@pytest.mark.parametrize("state", [replace(TRAINING, step=None), replace(TRAINING, step=3, steps_planned=None)])
def test_without_steps_or_their_number_no_time_is_known(state: JobState) -> None:
    assert StepRate().eta_seconds(state, 1.0) is None
