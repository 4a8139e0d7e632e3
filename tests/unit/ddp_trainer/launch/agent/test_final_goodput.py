"""What the time of a job went into that ends, by what its ranks told last and its launcher saw since."""

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
    """A hundred seconds of steps up to a moment."""
    seconds = [100.0 * (state is JobTime.PRODUCTIVE) for state in JobTime]
    return JobAccount(until - 100.0, seconds, 2, 5.0)


def test_before_the_first_step_time_went_into_the_start_and_the_rendezvous_and_none_was_productive() -> None:
    account = account_at_the_end(None, TIMES, NOW, JobTime.RESTART)
    assert spent(account) == {JobTime.STARTUP: 4.0 + 60.0, JobTime.RENDEZVOUS: 10.0}
    assert account.summary()["goodput"] == 0.0
    assert account.summary()["largest_badput"] == "startup"
    assert (account.started, account.until) == (LAUNCHED, NOW)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({LifecycleEvent.LAUNCHED: LAUNCHED}, {JobTime.STARTUP: 74.0}),
        (
            {LifecycleEvent.LAUNCHED: LAUNCHED, LifecycleEvent.JOINED: JOINED},
            {JobTime.STARTUP: 4.0, JobTime.RENDEZVOUS: 70.0},
        ),
        (TIMES | {LifecycleEvent.JOINED: 1024.0}, {JobTime.STARTUP: 24.0, JobTime.RENDEZVOUS: 50.0}),
    ],
    ids=["never joined", "never formed", "joined again"],
)
def test_a_launcher_that_found_no_others_waited_in_the_rendezvous(
    times: dict[LifecycleEvent, float], expected: dict[JobTime, float]
) -> None:
    assert spent(account_at_the_end(None, times, NOW, JobTime.RESTART)) == expected


def test_a_hang_before_the_first_step_is_a_hang() -> None:
    account = account_at_the_end(None, TIMES, NOW, JobTime.HANG)
    assert spent(account) == {JobTime.STARTUP: 4.0, JobTime.RENDEZVOUS: 10.0, JobTime.HANG: 60.0}


def test_what_followed_the_last_step_of_a_group_led_to_the_end() -> None:
    account = account_at_the_end(trained(1070.0), TIMES, NOW, JobTime.RESTART)
    assert spent(account) == {JobTime.PRODUCTIVE: 100.0, JobTime.RESTART: 4.0}
    assert (account.lost_steps, account.lost_seconds) == (2, 5.0)


def test_a_group_that_was_formed_anew_and_took_no_step_had_to_start_again() -> None:
    account = account_at_the_end(trained(1002.0), TIMES, NOW, JobTime.RESTART)
    assert spent(account) == {
        JobTime.PRODUCTIVE: 100.0,
        JobTime.RESTART: 2.0,
        JobTime.RENDEZVOUS: 10.0,
        JobTime.STARTUP: 60.0,
    }


def test_before_a_pod_that_came_later_there_was_none() -> None:
    account = account_at_the_end(trained(900.0), TIMES, NOW, JobTime.RESTART)
    assert spent(account) == {
        JobTime.PRODUCTIVE: 100.0,
        JobTime.SCHEDULING: 100.0,
        JobTime.STARTUP: 4.0 + 60.0,
        JobTime.RENDEZVOUS: 10.0,
    }
    assert account.until == NOW


def test_an_account_survives_its_file_and_what_is_none_is_none() -> None:
    assert JobAccount.from_json(trained(900.0).to_json()) == trained(900.0)
    for text in ("", "{}", "[]", "7", "[1, 2]", '["a"]', trained(900.0).to_json().replace("100.0", "-1")):
        assert JobAccount.from_json(text) is None


@pytest.mark.parametrize(("groups", "number", "is_known"), [(1, 1, True), (3, 3, True), (1, 3, False)])
def test_only_a_pod_of_the_first_group_reports_the_start_of_the_job(
    groups: int, number: int, *, is_known: bool
) -> None:
    moments = LifecycleTimes()
    for _ in range(groups):
        moments.reached(LifecycleEvent.FORMED)
    core = SimpleNamespace(generation=SimpleNamespace(number=number))
    setup: Any = SimpleNamespace(core=core, recorder=SimpleNamespace(startup=lambda: {"began": LAUNCHED}))
    assert job_startup(setup, moments) == ({"startup": {"began": LAUNCHED}} if is_known else {})
