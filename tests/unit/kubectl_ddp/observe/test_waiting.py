"""Waiting for a job, whatever it does meanwhile."""

from __future__ import annotations

import pytest

from kubectl_ddp.errors import Cancelled, DdpError, InfrastructureFailed, JobFailed, NotFound, TimedOut, UsageError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for, wait_until_deleted
from kubectl_ddp.status.job_state import JobState, State
from tests.support import kube_objects
from tests.support.kube_objects import job, pod, pod_metrics, snapshot, terminated
from tests.support.scripted_backend import ScriptedBackend
from tests.support.threads import no_thread_left

PENDING = snapshot(job("Created"), pod(0, kube_objects.waiting()))
RUNNING = snapshot(job("Created", "Running"), pod(0))
SUSPENDING = snapshot(job("Created", "Suspended", run_policy={"suspend": True}), pod(0))
SUSPENDED = snapshot(job("Created", "Suspended", run_policy={"suspend": True}))
SUCCEEDED = snapshot(job("Created", "Succeeded"), pod(0, terminated(0)))
BUG = snapshot(job("Created", "Failed"), pod(0, terminated(1, "ValueError: no")))
KILLED = snapshot(job("Created", "Failed"), pod(0, terminated(137)))
LOST = snapshot(job("Created", kube_objects.condition("Failed", reason="EngineLost")))


@pytest.mark.parametrize(
    ("goal", "moments", "reached"),
    [
        pytest.param("complete", [PENDING, RUNNING, SUCCEEDED], State.SUCCEEDED, id="complete"),
        pytest.param("running", [PENDING, SUCCEEDED], State.SUCCEEDED, id="running, and through already"),
        pytest.param("failed", [RUNNING, BUG], State.FAILED, id="failed"),
        pytest.param("failed", [RUNNING, LOST], State.LOST, id="lost is failed"),
        pytest.param("suspended", [RUNNING, SUSPENDING, SUSPENDED], State.SUSPENDED, id="suspended"),
    ],
)
def test_a_wait_ends_when_the_job_has_done_it(goal: str, moments: list[Snapshot], reached: State) -> None:
    assert wait_for(ScriptedBackend(moments), "digits", parse_wait_condition(goal)).state is reached


def test_running_means_that_the_ranks_found_one_another_and_not_that_pods_run() -> None:
    pages: list[dict[str, str]] = [{}, {}, {"digits-worker-0": pod_metrics(world=2)}]
    seen: list[JobState] = []
    backend = ScriptedBackend([SUSPENDED, RUNNING], metrics=pages)
    wait_for(backend, "digits", parse_wait_condition("running"), seen=seen.append)
    reported = [(State.SUSPENDED, None), *[(State.RUNNING, None)] * 2, (State.RUNNING, 2)]
    assert [(state.state, state.world_size) for state in seen] == reported


def test_suspended_means_that_the_pods_have_ended() -> None:
    seen = []
    wait_for(ScriptedBackend([SUSPENDING, SUSPENDED]), "digits", parse_wait_condition("suspended"), seen=seen.append)
    assert [state.nodes.ready for state in seen] == [1, 0]


@pytest.mark.parametrize(
    ("goal", "moments", "error", "code"),
    [
        pytest.param("complete", [RUNNING, BUG], JobFailed, 10, id="its code fails"),
        pytest.param("complete", [RUNNING, KILLED], InfrastructureFailed, 11, id="its machine fails"),
        pytest.param("complete", [RUNNING, LOST], InfrastructureFailed, 11, id="its engine dies"),
        pytest.param("complete", [RUNNING, SUSPENDED], Cancelled, 12, id="somebody suspends it"),
        pytest.param("suspended", [RUNNING, SUCCEEDED], DdpError, 1, id="it succeeds first"),
        pytest.param("failed", [RUNNING, SUCCEEDED], DdpError, 1, id="it does not fail"),
        pytest.param("complete", [], NotFound, 3, id="there is none"),
    ],
)
def test_a_wait_that_is_hopeless_ends(goal: str, moments: list[Snapshot], error: type[DdpError], code: int) -> None:
    with pytest.raises(error) as raised:
        wait_for(ScriptedBackend(moments), "digits", parse_wait_condition(goal))
    assert raised.value.exit_code == code


def test_a_deleted_job_is_not_waited_for() -> None:
    backend = ScriptedBackend([RUNNING], is_deleted_at_the_end=True)
    with pytest.raises(Cancelled, match="was deleted before it was complete"):
        wait_for(backend, "digits", parse_wait_condition("complete"))
    wait_until_deleted(backend, "digits")
    wait_until_deleted(ScriptedBackend([]), "digits")


def test_steps_and_world_sizes_are_asked_from_the_pods() -> None:
    def page(step: int, world: int) -> dict[str, str]:
        ranks = kube_objects.job_metrics() + kube_objects.rank_metrics(0, step=step)
        return {"digits-worker-0": pod_metrics(world=world) + ranks}

    for goal, step in (("step=9", 9), ("world-size=4", 10)):
        backend = ScriptedBackend([RUNNING], metrics=[page(3, 2), page(9, 2), page(10, 4)])
        assert wait_for(backend, "digits", parse_wait_condition(goal)).step == step


def test_a_wait_ends_with_its_time_and_says_how_far_the_job_was() -> None:
    with no_thread_left(), pytest.raises(TimedOut, match=r"was not complete within 0\.3 s\. It is Running") as raised:
        wait_for(ScriptedBackend([RUNNING]), "digits", parse_wait_condition("complete"), timeout=0.3)
    assert raised.value.exit_code == 124


@pytest.mark.parametrize("text", ["", "done", "step", "step=", "step=x", "step=0", "step=-1", "complete=1", "loss<1"])
def test_what_cannot_be_waited_for_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(UsageError, match=r"Choose one of complete, running, .* world-size=N"):
        parse_wait_condition(text)
