"""The watch of a list reports jobs whose state, size or result has changed, and nothing else."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubectl_ddp.observe.job_list import LEAST_SECONDS, MOST_SECONDS, READING_SHARE, watch_list
from kubectl_ddp.status.job_state import JobState, Nodes, State, job_state
from tests.support.kube_objects import job, snapshot

PENDING = replace(job_state(snapshot(job("Created")), {}), name="a", uid="1")
RUNNING = replace(PENDING, state=State.RUNNING)
OTHER = replace(RUNNING, name="b", uid="2")


def reported(*readings: Sequence[JobState]) -> list[list[tuple[str, State]]]:
    """Names and states of the jobs of each report, of a list that reads as scripted."""
    moments = deque(readings)
    changes = watch_list(moments.popleft, pause=lambda _: None)
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(next(changes))
    assert all(state in change.states for change in found for state in change.changed)
    return [[(state.name, state.state) for state in change.changed] for change in found]


def test_the_first_report_has_all_jobs_and_the_next_ones_those_that_changed() -> None:
    first, second = reported([PENDING, OTHER], [RUNNING, OTHER], [RUNNING, OTHER])
    assert (first, second) == ([("a", State.PENDING), ("b", State.RUNNING)], [("a", State.RUNNING)])


def test_a_job_of_the_same_name_in_another_run_is_another_job() -> None:
    [_, second] = reported([RUNNING], [replace(PENDING, uid="3")])
    assert sorted(second) == [("a", State.DELETING), ("a", State.PENDING)]


@pytest.mark.parametrize("now", [{"step": 2}, {"throughput": 5.0}, {"eta_seconds": 1.0}, {"loss": 0.1}])
def test_progress_is_no_change(now: dict[str, Any]) -> None:
    assert len(reported([RUNNING], [replace(RUNNING, **now)])) == 1


@pytest.mark.parametrize("now", [{"restarts": {"hang": 1}}, {"nodes": Nodes(1, 2, 1, 2)}, {"summary": {"steps": 3}}])
def test_restarts_nodes_and_results_are_changes(now: dict[str, Any]) -> None:
    assert len(reported([RUNNING], [replace(RUNNING, **now)])) == 2


def test_a_list_that_takes_long_to_read_is_read_less_often() -> None:
    times = deque([0.0, 0.001, 0.0, 0.1, 0.0, 60.0, 0.0])
    pauses: list[float] = []
    moments: deque[list[JobState]] = deque([[]] * 3)
    with pytest.raises(IndexError):
        list(watch_list(moments.popleft, pause=pauses.append, clock=times.popleft))
    assert pauses == [LEAST_SECONDS, 0.1 / READING_SHARE, MOST_SECONDS]


def test_restarts_that_are_unknown_for_a_while_are_reported_once() -> None:
    restarted = replace(RUNNING, restarts={"hang": 1})
    assert len(reported([RUNNING], [restarted], [RUNNING], [restarted])) == 2
