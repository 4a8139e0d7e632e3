"""``submit`` creates one DDPJob and its code, whatever dies in between, and other commands change the DDPJob."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import PolicyDenied
from kubectl_ddp.backends.cluster.write import ddpjob_submission
from kubectl_ddp.backends.cluster.write.ddpjob_submission import ANSWER_SECONDS, DDPJobSubmission
from kubectl_ddp.code.archive import Code
from kubectl_ddp.engines import Engine
from kubectl_ddp.errors import AlreadyExists, DdpError, NotFound, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.values.program import Script
from tests.support.api_server import ALL_ALLOWED, CONFIG_MAPS, Answer, ApiServer, status
from tests.support.jobs import a_job
from tests.unit.ddp_controller.ddpjob_cluster import DDPJOB, GROUPS, ROOT, Cluster, Killed

COLLECTION = DDPJOB.rpartition("/")[0]


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddpjob_submission, "PAUSE_SECONDS", 0.001)


def objects(**changes: Any) -> list[Object]:
    """A rendered job with a script."""
    spec = a_job(engine=Engine.JOB, program=Script("train.py"), args=(), **changes)
    return render(spec, "run", code=Code("train.py", "print('hello')\n"))


def submit(cluster: Cluster, api: Api, wanted: list[Object]) -> bool:
    """Submit beside a controller, which acts while the submission waits."""
    controller = cluster.reconciler(cluster.watching)

    def wait(_seconds: float) -> None:
        cluster.now += 1
        cluster.settle(controller)

    return submission(api, wanted, wait).submit()


def submission(
    api: Api,
    wanted: list[Object],
    wait: Callable[[float], None] = lambda _: None,
    *,
    may_create_objects: bool = True,
    notice: Callable[[str], None] = lambda _: None,
) -> DDPJobSubmission:
    may_create = {"may_create_objects": lambda: may_create_objects}
    return DDPJobSubmission(api, wanted, "team", **may_create, notice=notice, sleep=wait)


def test_a_submission_is_one_ddpjob_and_its_code(cluster: Cluster) -> None:
    assert submit(cluster, cluster.api, objects())
    created = [entry.body["kind"] for entry in cluster.server.requests if entry.path in {COLLECTION, CONFIG_MAPS}]
    assert created[:2] == ["DDPJob", "ConfigMap"]
    made = cluster.made()
    [code] = [item for item in made.values() if item["kind"] == "ConfigMap"]
    assert code["metadata"]["ownerReferences"][0]["kind"] == "DDPJob"
    assert made["Job/digits"]["spec"]["suspend"] is False


@pytest.mark.parametrize("loses_answer", [False, True])
def test_the_command_killed_at_any_request_and_run_again_makes_one_job(cluster: Cluster, loses_answer: bool) -> None:
    for last in range(1, 30):
        cluster.server.objects.clear()
        cluster.life.left, cluster.life.loses_answer = last, loses_answer
        with contextlib.suppress(Killed):
            submit(cluster, cluster.api, objects())
        is_whole = cluster.life.left >= 0
        cluster.life.left = 10**6
        assert submit(cluster, cluster.api, objects())
        cluster.settle()
        made = cluster.made()
        assert made["Job/digits"]["spec"]["suspend"] is False
        assert len([item for item in made.values() if item["kind"] == "ConfigMap"]) == 1
        if is_whole:
            break
    assert is_whole
    assert last > 3


def test_the_identical_job_is_left_unchanged_and_another_one_is_refused(cluster: Cluster) -> None:
    submit(cluster, cluster.api, objects())
    before = cluster.server.objects[DDPJOB]["metadata"]["uid"]
    assert submit(cluster, cluster.api, objects())
    with pytest.raises(AlreadyExists, match="another DDPJob 'digits'"):
        submit(cluster, cluster.api, objects(max_restarts=3))
    assert cluster.server.objects[DDPJOB]["metadata"]["uid"] == before


def test_a_user_who_may_not_create_a_ddpjob_gets_the_objects_instead(cluster: Cluster) -> None:
    cluster.server.next(f"POST {COLLECTION}", Answer(403, status(403, "Forbidden", "no right")))
    assert not submit(cluster, cluster.api, objects())
    denied = "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
    cluster.server.next(f"POST {COLLECTION}", Answer(403, status(403, "Forbidden", denied)))
    with pytest.raises(PolicyDenied):
        submit(cluster, cluster.api, objects())


def test_a_job_on_which_no_controller_acts_is_withdrawn_with_its_code_in_one_sentence(cluster: Cluster) -> None:
    messages: list[str] = []
    waited: list[float] = []
    assert not submission(cluster.api, objects(), waited.append, notice=messages.append).submit()
    assert sum(waited) == pytest.approx(ANSWER_SECONDS)
    assert cluster.server.objects == {}
    [sentence] = messages
    assert sentence.startswith("No controller has acted on the DDPJob 'digits' for 5 s, so this command creates")


def test_a_user_who_may_create_nothing_else_waits_longer_for_a_controller(cluster: Cluster) -> None:
    with pytest.raises(DdpError, match="No controller has acted on the DDPJob 'digits' for 30 s"):
        submission(cluster.api, objects(), may_create_objects=False).submit()
    assert DDPJOB not in cluster.server.objects


def test_a_controller_that_answers_at_the_last_moment_keeps_the_job(cluster: Cluster) -> None:
    """The DDPJob is deleted only if its version is that without a status."""
    controller = cluster.reconciler(cluster.watching)

    def late(_seconds: float) -> None:
        if any(item.method == "DELETE" for item in cluster.server.requests):
            cluster.settle(controller)

    def answer() -> bool:
        cluster.api.merge(f"{DDPJOB}/status", {"status": {"phase": "Pending"}})
        return True

    made = DDPJobSubmission(
        cluster.api, objects(), "team", may_create_objects=answer, notice=lambda _: None, sleep=late
    )
    assert made.submit()
    assert cluster.made()["Job/digits"]["spec"]["suspend"] is False


@pytest.mark.usefixtures("short_pauses")
def test_submit_without_a_controller_makes_the_objects(
    cluster: Cluster, backend: ClusterBackend, notices: list[str]
) -> None:
    cluster.server.next("POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews", ALL_ALLOWED)
    backend.submit(objects())
    assert DDPJOB not in cluster.server.objects
    assert cluster.server.objects[ROOT]["spec"]["suspend"] is False
    assert [item["kind"] for item in cluster.server.objects.values()].count("ConfigMap") == 1
    assert len(notices) == 1


def test_a_job_that_the_controller_refuses_is_withdrawn_with_its_sentence(cluster: Cluster) -> None:
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {}}
    cluster.server.put("/api/v1/namespaces/team/services/digits", foreign)
    with pytest.raises(UsageError, match="another Service 'digits'"):
        submit(cluster, cluster.api, objects())
    assert DDPJOB not in cluster.server.objects


@pytest.mark.usefixtures("short_pauses")
def test_commands_change_the_ddpjob_and_not_its_objects(
    cluster: Cluster, backend: ClusterBackend, notices: list[str]
) -> None:
    submit(cluster, cluster.api, objects())
    backend.scale("digits", 1)
    backend.suspend("digits", suspended=True)
    spec = cluster.server.objects[DDPJOB]["spec"]
    assert (spec["replicas"], spec["suspend"]) == (1, True)
    assert cluster.server.objects[ROOT]["spec"]["suspend"] is False
    assert [item.partition(" for ")[0] for item in notices] == [
        "No controller has acted on the change of the DDPJob 'digits'"
    ] * 2
    cluster.settle()
    backend.scale("digits", 1)
    assert len(notices) == 2, "this size has been observed"
    backend.delete("digits")
    assert DDPJOB not in cluster.server.objects


INVALID = {"conditions": [{"type": "Valid", "status": "False", "message": "image: there is none."}]}


@pytest.mark.parametrize(("spec", "job_status", "reason"), [
    ({}, INVALID, "is not valid: image: there is none."),
    ({"suspend": True}, {}, "is suspended, and has no objects yet."),
    ({}, {}, "has no objects yet: the controller has not made them."),
])  # fmt: skip
@pytest.mark.usefixtures("short_pauses")
def test_a_ddpjob_without_objects_is_named(
    cluster: Cluster, backend: ClusterBackend, notices: list[str], spec: Object, job_status: Object, reason: str
) -> None:
    job = {"apiVersion": "ddp.dev/v1alpha1", "kind": "DDPJob", "metadata": {"name": "digits"}}
    cluster.server.put(DDPJOB, {**job, "spec": spec, "status": job_status})
    assert backend.jobs() == []
    assert notices == [f"warning: The DDPJob 'digits' {reason}"]
    with pytest.raises(NotFound, match=f"The DDPJob 'digits' {reason}"):
        backend.job("digits")
    backend.suspend("digits", suspended=False)
    assert cluster.server.objects[DDPJOB]["spec"]["suspend"] is False


@pytest.mark.api_groups({path: kinds for path, kinds in GROUPS.items() if "ddp.dev" not in path})
def test_submit_without_the_kind_makes_the_objects_itself(server: ApiServer, backend: ClusterBackend) -> None:
    backend.submit(objects())
    assert server.objects[ROOT]["metadata"]["annotations"]["ddp.dev/digest"]
