"""Time breakdown of a job that ends, from the last report of its ranks and the moments of its launcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddp_trainer.common.constants import LifecycleEvent
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.launch.agent.final_goodput import account_at_the_end, job_startup
from ddp_trainer.launch.protocol.lifecycle_times import LifecycleTimes

LAUNCHED, JOINED, FORMED, NOW = 1000.0, 1004.0, 1014.0, 1074.0
TIMES = {LifecycleEvent.LAUNCHED: LAUNCHED, LifecycleEvent.JOINED: JOINED, LifecycleEvent.FORMED: FORMED}


def spent(account: JobAccount) -> dict[JobTime, float]:
    return {state: seconds for state, seconds in account.seconds_by_state.items() if seconds}


def trained(until: float) -> JobAccount:
    """Return the account of a hundred seconds of steps up to a moment."""
    return JobAccount(until - 100.0, [100.0 * (state is JobTime.PRODUCTIVE) for state in JobTime], 2, 5.0)


STARTED = {JobTime.STARTUP: 4.0, JobTime.RENDEZVOUS: 10.0}
NEVER_FORMED = {LifecycleEvent.LAUNCHED: LAUNCHED, LifecycleEvent.JOINED: JOINED}


@pytest.mark.parametrize(
    ("times", "end", "expected"),
    [
        pytest.param({LifecycleEvent.LAUNCHED: LAUNCHED}, JobTime.RESTART, {JobTime.STARTUP: 74.0}, id="never joined"),
        pytest.param(NEVER_FORMED, JobTime.RESTART, STARTED | {JobTime.RENDEZVOUS: 70.0}, id="never formed"),
        pytest.param(TIMES, JobTime.RESTART, STARTED | {JobTime.STARTUP: 4.0 + 60.0}, id="no step"),
        pytest.param(TIMES, JobTime.HANG, STARTED | {JobTime.HANG: 60.0}, id="a hang"),
    ],
)
def test_before_the_first_step_no_time_is_productive(
    times: dict[LifecycleEvent, float], end: JobTime, expected: dict[JobTime, float]
) -> None:
    account = account_at_the_end(None, times, NOW, end)
    assert spent(account) == expected
    assert account.summary()["goodput"] == 0.0
    assert (account.started, account.until) == (LAUNCHED, NOW)


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        pytest.param(1070.0, {JobTime.RESTART: 4.0}, id="in this group"),
        pytest.param(1002.0, {JobTime.RESTART: 2.0, JobTime.RENDEZVOUS: 10.0, JobTime.STARTUP: 60.0}, id="before it"),
        pytest.param(900.0, STARTED | {JobTime.SCHEDULING: 100.0, JobTime.STARTUP: 64.0}, id="before this pod"),
    ],
)
def test_time_after_the_last_step_counts_for_the_cause_of_the_end(until: float, expected: dict[JobTime, float]) -> None:
    account = account_at_the_end(trained(until), TIMES, NOW, JobTime.RESTART)
    assert spent(account) == expected | {JobTime.PRODUCTIVE: 100.0}
    assert (account.lost_steps, account.lost_seconds, account.until) == (2, 5.0, NOW)


def test_an_account_is_read_back_and_an_invalid_one_is_none() -> None:
    assert JobAccount.from_json(trained(900.0).to_json()) == trained(900.0)
    for text in ("", "{}", "[]", "7", "[1, 2]", '["a"]', trained(900.0).to_json().replace("100.0", "-1")):
        assert JobAccount.from_json(text) is None


@pytest.mark.parametrize(("groups", "number", "is_known"), [(1, 1, True), (3, 3, True), (1, 3, False)])
def test_only_pods_of_the_first_group_report_the_start_of_the_job(groups: int, number: int, *, is_known: bool) -> None:
    moments = LifecycleTimes()
    for _ in range(groups):
        moments.record_event(LifecycleEvent.FORMED)
    core = SimpleNamespace(generation=SimpleNamespace(number=number))
    setup: Any = SimpleNamespace(core=core, recorder=SimpleNamespace(startup=lambda: {"began": LAUNCHED}))
    assert job_startup(setup, moments) == ({"startup": {"began": LAUNCHED}} if is_known else {})
