"""The optional controller: a sentence if it does not work, or if it is not there for a job that needs it."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.controllers import check_controller
from kubectl_ddp.preflight.model import Subject
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.values.program import QueueResize
from kubectl_ddp.values.quantity import NodeRange
from tests.support.cluster_facts import a_subject, facts

LACKS = "error: The controller may not patch jobs.batch in all namespaces. Grant this to its service account.\n"


def a_controller(*, ready: bool = False, args: tuple[str, ...] = (), **status: Any) -> Object:
    """A pod of the controller, with the status of its container."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": "ddp-controller-1", "namespace": "ddp-system"},
        "spec": {"containers": [{"name": "controller", "args": ["--settle=10", *args]}]},
        "status": {"conditions": conditions, "containerStatuses": [status]},
    }


def ended(code: int, message: str = "") -> dict[str, Any]:
    """The status of a container that has ended, and waits for its next start."""
    ending = {"terminated": {"exitCode": code, "message": message}}
    return {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ending}


def elastic() -> Subject:
    """A job that the controller resizes."""
    return a_subject(nnodes=NodeRange(1, 4), engine=Engine.JOB, queue="team", queue_resize=QueueResize.RUNNING)


def check(subject: Subject, *pods: Object) -> list[Finding]:
    return list(check_controller(subject, facts(controller=pods)))


def test_a_missing_right_is_told_as_the_controller_told_it() -> None:
    started = '{"event": "started"}\n'
    [found] = check(a_subject(), a_controller(**ended(5, started + LACKS)))
    assert found.severity is Severity.WARNING
    assert found.message.startswith("The controller may not patch jobs.batch in all namespaces. Until")
    assert "move before their node goes" in found.message
    assert "quota" not in found.message


def test_an_elastic_job_does_not_follow_the_quota_either() -> None:
    [found] = check(elastic(), a_controller(**ended(5, LACKS)))
    assert "does not follow the quota" in found.message


@pytest.mark.parametrize(
    "status",
    [pytest.param({}, id="it does not start"), pytest.param(ended(1, LACKS), id="it ended for another reason")],
)
def test_one_that_is_not_ready_is_shown_with_the_command_that_shows_why(status: dict[str, Any]) -> None:
    [found] = check(a_subject(), a_controller(**status))
    assert found.severity is Severity.WARNING
    assert "may not" not in found.message
    assert "kubectl describe pod ddp-controller-1 -n ddp-system" in found.hint


def test_what_a_pod_writes_is_not_trusted() -> None:
    [found] = check(a_subject(), a_controller(**ended(5, "error: \x1b[2Jno\n")))
    assert "\x1b" not in found.message


def test_one_ready_pod_of_several_is_enough() -> None:
    [found] = check(elastic(), a_controller(**ended(1)), a_controller(ready=True))
    assert found.severity is Severity.OK


def test_a_right_that_one_pod_lacks_is_missing_for_all_and_one_that_it_lacked_before_is_not() -> None:
    [found] = check(elastic(), a_controller(**ended(5, LACKS)), a_controller(ready=True))
    assert found.severity is Severity.WARNING
    [found] = check(elastic(), a_controller(ready=True, **ended(5, LACKS)))
    assert found.severity is Severity.OK


def test_without_a_controller_only_a_job_that_it_would_resize_is_warned() -> None:
    assert check(a_subject()) == []
    [found] = check(elastic())
    assert found.severity is Severity.WARNING


def test_a_controller_of_other_namespaces_is_none() -> None:
    other = a_controller(args=("--only-namespace=vision",), **ended(5, LACKS))
    assert check(a_subject(), other) == []
    own = a_controller(args=("--only-namespace=vision", "--only-namespace=team"), **ended(5, LACKS))
    assert len(check(a_subject(), own)) == 1
