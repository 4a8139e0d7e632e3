"""The job's container is found by its name, wherever users and webhooks put theirs."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.kube.objects import Object, main_container, main_status
from kubectl_ddp.status.termination_message import crash_message, first_error, is_running
from kubectl_ddp.why.model import Cause
from tests.support.diagnosed import facts, first, trains
from tests.support.kube_objects import CREATED_EPOCH, job, pod, running, terminated, waiting

JOBS = sorted({engine.container for engine in ENGINES.values()} | {"store"})


def beside(made: Object, name: str = "istio-proxy", **status: Any) -> Object:
    """A pod to which a webhook has added a container before its own. The kubelet sorts statuses by name."""
    made["spec"]["containers"].insert(0, {"name": name})
    statuses = made["status"]["containerStatuses"]
    statuses.append({"name": name, "ready": True, "restartCount": 0, "state": running(), **status})
    statuses.sort(key=lambda value: value["name"])
    return made


@pytest.mark.parametrize("own", JOBS)
@pytest.mark.parametrize("other", ["a-proxy", "z-agent"])
def test_the_jobs_container_is_found_beside_another_on_every_engine(own: str, other: str) -> None:
    made = pod()
    made["spec"]["containers"][0]["name"] = made["status"]["containerStatuses"][0]["name"] = own
    beside(made, other)
    assert (main_container(made), main_status(made)["name"]) == (own, own)


def test_the_state_of_a_pod_is_that_of_the_jobs_container() -> None:
    ended = beside(pod(0, terminated(1, '{"message": "ValueError: no", "rank": 0}')))
    assert not is_running(ended)
    error = first_error([ended])
    assert error is not None
    assert error.pod_exit_code == 1
    alone = beside(pod(0), state=terminated(137), lastState=terminated(1, "out of tokens"))
    assert is_running(alone)
    assert first_error([alone]) is None
    crashing = beside(pod(0), state=waiting("CrashLoopBackOff"), lastState=terminated(2))
    assert not crash_message(crashing)


def test_a_sidecar_that_was_killed_after_the_job_or_beside_it_is_no_cause() -> None:
    made = pod(0)
    made["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    made["status"]["initContainerStatuses"] = [{"name": "proxy", "ready": False, "state": terminated(143)}]
    oom = beside(pod(1), lastState=terminated(137) | {"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    found = first(facts(job("Created", "Running"), made, oom, metrics=trains()))
    assert found.subject is Cause.RUNNING


def test_a_container_that_keeps_the_pod_running_after_the_job_is_named() -> None:
    ended = beside(pod(0, terminated(0)))
    found = first(facts(job("Created", "Running"), ended, now=CREATED_EPOCH + 60))
    assert found.subject is Cause.SIDECAR
    assert "its container 'istio-proxy' keeps the pod running" in found.message
    just_now = facts(job("Created", "Running"), ended, now=CREATED_EPOCH + 10)
    assert first(just_now).subject is not Cause.SIDECAR


def test_an_init_container_that_the_job_waits_for_is_the_cause() -> None:
    made = pod(0, waiting("PodInitializing"))
    made["status"]["initContainerStatuses"] = [{"name": "fetch", "ready": False, "state": terminated(1)}]
    found = first(facts(job("Created"), made))
    assert (found.subject, "'fetch'" in found.message) == (Cause.INIT, True)
