"""Phases of a worker's start: they add up from the launcher's start to the end of the first step."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from ddp_trainer.common.constants import Env, LifecycleEvent
from ddp_trainer.common.time_classes import IN_POD, StartupPhase
from ddp_trainer.process.startup_times import StartupTimes, compile_seconds

LAUNCHED = {LifecycleEvent.STARTED: 100.0, LifecycleEvent.LAUNCHED: 100.5}
MARKS = {StartupPhase.INTERPRETER: 103.25, StartupPhase.IMPORTS: 105.0, StartupPhase.RENDEZVOUS: 106.0}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide compilation by other tests of this process."""
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)


def started(process: float) -> StartupTimes:
    """Start-up times of a process that began at this moment, with a fixed clock."""
    return StartupTimes(clock=lambda: 110.0, started=lambda: process)


def seconds(times: StartupTimes, moments: dict[LifecycleEvent, float]) -> dict[StartupPhase, float]:
    began, spent = times.seconds({Env.MOMENTS: json.dumps(moments)})
    assert began == 100.0
    return spent


@pytest.mark.parametrize(
    ("process", "formed", "before"),
    [
        pytest.param(100.5625, None, {"interpreter": 0.5625}, id="workers start immediately"),
        pytest.param(103.0, 102.0, {"interpreter": 0.5, "rendezvous": 2.5}, id="a script waits for its group"),
        pytest.param(103.0, None, {"interpreter": 3.0}, id="no group has formed: the process was slow to start"),
    ],
)
def test_the_launcher_has_the_time_before_it(process: float, formed: float | None, before: dict[str, float]) -> None:
    assert seconds(started(process), LAUNCHED | ({LifecycleEvent.FORMED: formed} if formed else {})) == before


def test_the_wait_for_a_fork_server_belongs_to_the_imports() -> None:
    moments = LAUNCHED | {LifecycleEvent.FORMED: 102.0, LifecycleEvent.IMPORTING: 102.0}
    assert seconds(started(105.0), moments) == {"interpreter": 0.5, "rendezvous": 1.5, "imports": 3.0}


@pytest.mark.usefixtures("no_compiler")
def test_all_phases_are_there_after_the_first_step_and_add_up() -> None:
    times = started(103.0)
    for phase, moment in MARKS.items():
        times.end_phase(phase, moment)
    times.finish(seconds=3.0, data_wait=1.0)
    spent = seconds(times, LAUNCHED | {LifecycleEvent.FORMED: 102.5})
    assert tuple(spent) == IN_POD
    assert sum(spent.values()) == pytest.approx(10.0)
    assert (spent[StartupPhase.RENDEZVOUS], spent[StartupPhase.FIRST_STEP]) == (2.5 + 1.0, 2.0)
    assert times.is_over


@pytest.mark.usefixtures("no_compiler")
def test_a_phase_that_was_not_reported_belongs_to_the_next() -> None:
    times = started(100.5)
    times.finish(seconds=4.0, data_wait=1.0)
    reported = {StartupPhase.INTERPRETER: 0.5, StartupPhase.FIRST_BATCH: 6.5, StartupPhase.FIRST_STEP: 3.0}
    assert seconds(times, LAUNCHED) == dict.fromkeys(IN_POD, 0.0) | reported


def test_a_script_without_a_group_has_imported_when_it_has_torch() -> None:
    times = StartupTimes(clock=iter([104.0, 106.0, 107.0]).__next__, started=lambda: 100.5)
    times.end_phase(StartupPhase.INTERPRETER, 101.0)
    times.torch_imported()
    times.end_phase(StartupPhase.FIRST_BATCH)
    spent = seconds(times, LAUNCHED)
    assert (spent[StartupPhase.IMPORTS], spent[StartupPhase.FIRST_BATCH]) == (3.0, 2.0)


def test_a_later_group_of_the_process_changes_nothing() -> None:
    times, calls = started(100.5), []
    times.listener = lambda: calls.append(1)
    times.end_phase(StartupPhase.RENDEZVOUS, 104.0)
    times.end_phase(StartupPhase.RENDEZVOUS, 109.0)
    times.finish(1.0, 0.0)
    times.finish(1.0, 0.0)
    assert seconds(times, LAUNCHED)[StartupPhase.RENDEZVOUS] == 3.5
    assert len(calls) == 2


def test_compilation_is_no_part_of_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"entire_frame_compile": 1.25e9, "entire_backward_compile": 0.25e9, "code_gen": 1e9}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(cumulative_time_spent_ns=spent))  # type: ignore[arg-type]
    times = started(100.5)
    times.end_phase(StartupPhase.FIRST_BATCH, 107.0)
    assert StartupPhase.COMPILE not in seconds(times, LAUNCHED), "it may still compile"
    times.finish(3.0, 0.0)
    found = seconds(times, LAUNCHED)
    assert (found[StartupPhase.COMPILE], found[StartupPhase.FIRST_STEP]) == (1.5, 1.5)


def test_torch_counts_the_compilation_under_the_names_that_are_read() -> None:
    """Fails where torch renames what :func:`compile_seconds` reads."""
    import torch

    before = compile_seconds()
    torch.compile(lambda value: value + 1, backend="eager")(torch.ones(1))
    assert compile_seconds() > before


@pytest.mark.parametrize("text", ["", "[]", "{", '{"launched": "now"}'])
def test_without_times_of_a_launcher_the_process_begins_it(text: str) -> None:
    began, spent = started(103.0).seconds({Env.MOMENTS: text})
    assert (began, spent) == (103.0, {StartupPhase.INTERPRETER: 0.0})
