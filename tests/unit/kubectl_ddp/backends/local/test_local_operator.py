"""The operator's decisions."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.backends.local.operator import Plan, reconcile, reconcile_job
from kubectl_ddp.kube.objects import Object
from tests.support.kube_objects import a_template, job, pod, running, terminated

NOW = "2026-01-02T03:10:00Z"
LATER = "2026-01-02T03:20:00Z"


def decide(job_object: Object, *pods: Object, status: dict[str, Any] | None = None, now: str = NOW) -> Plan:
    return reconcile(job_object, pods, status if status is not None else {}, now=now)


def conditions(plan: Plan) -> dict[str, str]:
    return {item["type"]: item["status"] for item in plan.status["conditions"]}


@pytest.mark.parametrize(("policy", "code", "deleted", "failed"), [
    pytest.param("ExitCode", 128, True, False, id="retryable"),
    pytest.param("ExitCode", 1, False, True, id="permanent"),
    pytest.param("ExitCode", 127, False, True, id="last permanent code"),
    pytest.param("Never", 137, False, True, id="never"),
])  # fmt: skip
def test_the_exit_code_and_the_policy_decide(policy: str, code: int, deleted: bool, failed: bool) -> None:
    plan = decide(job(policy=policy), pod(0), pod(1, terminated(code)))
    assert ("digits-worker-1" in plan.delete) is deleted
    assert (conditions(plan).get("Failed") == "True") is failed
    if failed:
        assert plan.delete == ("digits-worker-0",)  # cleanPodPolicy Running
        assert plan.status["completionTime"] == NOW


def test_a_pod_on_its_way_out_holds_its_name() -> None:
    leaving = pod(1, deletionTimestamp=NOW)
    assert decide(job(), pod(0), leaving).create == ()
    assert decide(job(), pod(0)).create == (1,)


def test_a_job_that_is_not_elastic_needs_all_to_succeed() -> None:
    fixed = job(bounds=None, policy="Never")
    assert "Succeeded" not in conditions(decide(fixed, pod(0, terminated(0)), pod(1)))
    assert conditions(decide(fixed, pod(0, terminated(0)), pod(1, terminated(0))))["Succeeded"] == "True"


def test_nothing_is_made_after_the_end_and_it_stays_the_end() -> None:
    done = decide(job(), pod(0, terminated(0)), pod(1)).status
    plan = decide(job(replicas=4), pod(0, terminated(0)), pod(1, terminated(1)), status=done)
    assert (plan.create, plan.delete) == ((), ())
    assert conditions(plan)["Succeeded"] == "True"
    assert "Failed" not in conditions(plan)


def test_running_and_restarting_take_turns() -> None:
    first = decide(job(), pod(0), pod(1)).status
    crashed = decide(job(replicas=1), pod(0, terminated(137)), status=first)
    assert conditions(crashed).get("Restarting") == "True"
    assert "Running" not in conditions(crashed)
    again = decide(job(), pod(0), pod(1), status=crashed.status)
    assert conditions(again).get("Running") == "True"
    assert "Restarting" not in conditions(again)


@pytest.mark.parametrize(("policy", "limit", "restarts", "failed"), [
    pytest.param("OnFailure", 3, (1, 2), True, id="restarts of all pods count"),
    pytest.param("OnFailure", 4, (1, 2), False, id="not yet"),
    pytest.param("OnFailure", 0, (0, 1), True, id="none allowed"),
    pytest.param("OnFailure", 0, (0, 0), False, id="none allowed and none needed"),
    pytest.param("ExitCode", 1, (5, 5), False, id="counts nothing under ExitCode"),
])  # fmt: skip
def test_the_backoff_limit_is_counted_as_the_operator_counts(
    policy: str, limit: int, restarts: tuple[int, int], failed: bool
) -> None:
    pods = [pod(index, running(), restarts=count) for index, count in enumerate(restarts)]
    plan = decide(job(policy=policy, run_policy={"backoffLimit": limit}), *pods)
    assert (conditions(plan).get("Failed") == "True") is failed


def test_a_job_past_its_deadline_fails() -> None:
    limited = job(run_policy={"activeDeadlineSeconds": 600})
    started = decide(limited, pod(0), pod(1))
    assert "Failed" not in conditions(started)
    plan = decide(limited, pod(0), pod(1), status=started.status, now=LATER)
    assert conditions(plan)["Failed"] == "True"
    assert plan.delete == ("digits-worker-0", "digits-worker-1")


STORE = {"kind": "Job", "metadata": {"name": "digits-store"}, "spec": {"template": a_template(), "backoffLimit": 2}}


def test_a_batch_job_past_its_limit_is_left_and_said_to_be() -> None:
    plan = reconcile_job(STORE, [], failures=3, is_run_over=False)
    assert not plan.create
    assert plan.event is not None
    assert plan.event[0] == "BackoffLimitExceeded"
