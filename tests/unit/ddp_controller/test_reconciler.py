"""A DDPJob becomes the objects that ``kubectl ddp submit`` makes, whatever dies in between, and its status follows."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.write.ddpjob_submission import ddpjob_of
from kubectl_ddp.backends.select import Where
from kubectl_ddp.client.submission import prepare_job
from kubectl_ddp.code.archive import Code, code_parts
from kubectl_ddp.kube.job_kinds import owner_reference
from kubectl_ddp.kube.objects import Object, condition_of
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.version import default_image
from tests.support.examples import JOB_FILES
from tests.support.refused_jobs import IN_VALID
from tests.unit.ddp_controller.ddpjob_cluster import DDPJOB, ROOT, SPACE, Cluster, Killed


@pytest.fixture
def started(cluster: Cluster) -> Cluster:
    """A cluster with a DDPJob and its objects."""
    cluster.create({})
    cluster.settle()
    return cluster


def holds(job: Object, kind: str) -> str:
    return str(condition_of(job, kind).get("status"))


def test_it_becomes_a_running_job_that_it_owns(cluster: Cluster) -> None:
    cluster.create({})
    job = cluster.settle()
    made = cluster.made()
    assert {"Job/digits", "Job/digits-store", "Secret", "Service/digits", "NetworkPolicy/digits"} <= made.keys()
    assert all(item["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"] for item in made.values())
    runs = {item["metadata"]["labels"]["ddp.dev/run-id"] for item in made.values()}
    assert runs == {job["status"]["runId"]}
    root = made["Job/digits"]
    assert (root["spec"]["suspend"], root["spec"]["parallelism"]) == (False, 3)
    assert job["status"]["observedGeneration"] == 1
    assert job["status"]["root"] == "job.batch/digits"
    assert [holds(job, kind) for kind in ("Valid", "Running", "Suspended", "Failed")] == ["True", *["False"] * 3]


def test_a_job_of_torchrun_becomes_its_objects_without_a_secret(cluster: Cluster) -> None:
    cluster.create({"launcher": "torchrun"})
    job = cluster.settle()
    assert holds(job, "Valid") == "True"
    assert "Job/digits" in (made := cluster.made())
    assert "Secret" not in made


def test_the_root_comes_last_and_is_suspended_until_then(started: Cluster) -> None:
    created = [item.body for item in started.server.requests if item.method == "POST" and item.body["kind"] != "Event"]
    assert created[0]["kind"] == "Secret"
    assert created[-1]["metadata"]["name"] == "digits"
    assert created[-1]["kind"] == "Job"
    assert created[-1]["spec"]["suspend"] is True


def test_a_job_that_is_as_it_should_be_costs_no_request(cluster: Cluster) -> None:
    cluster.create({})
    own = cluster.reconciler()
    cluster.settle(own)
    before = [str(item) for item in cluster.server.requests if item.method != "GET"]
    cluster.settle(own)
    assert [str(item) for item in cluster.server.requests if item.method != "GET"] == before


@pytest.mark.parametrize("loses_answer", [False, True])
def test_the_process_killed_at_any_request_leaves_what_another_completes(cluster: Cluster, loses_answer: bool) -> None:
    cluster.create({})
    cluster.settle()
    complete = {name for name in cluster.made() if name != "Secret"}
    for last in range(1, 200):
        cluster.server.objects.clear()
        cluster.create({})
        cluster.life.left, cluster.life.loses_answer = last, loses_answer
        with contextlib.suppress(Killed):
            cluster.settle()
        is_whole = cluster.life.left >= 0
        cluster.life.left = 10**6
        job = cluster.settle()
        made = cluster.made()
        assert {name for name in made if name != "Secret"} == complete, f"killed at request {last}"
        assert made["Job/digits"]["spec"]["suspend"] is False
        assert made["Job/digits"]["metadata"]["labels"]["ddp.dev/run-id"] == job["status"]["runId"]
        secret = made["Job/digits"]["spec"]["template"]["spec"]["volumes"]
        names = {item["secret"]["secretName"] for item in secret if "secret" in item}
        assert all(f"/api/v1{SPACE}/secrets/{name}" in cluster.server.objects for name in names)
        if is_whole:
            break
    assert is_whole
    assert last > 10, "requests were counted"


@pytest.mark.parametrize(("changes", "sentence"), IN_VALID, ids=lambda value: str(value)[:60])
def test_an_invalid_job_is_one_sentence_in_its_status_and_nothing_is_created(
    cluster: Cluster, changes: dict[str, Any], sentence: str
) -> None:
    cluster.create({"nnodes": "1:2", "nproc": 2, **changes})
    job = cluster.settle()
    assert (job["status"]["phase"], holds(job, "Valid")) == ("Invalid", "False")
    assert sentence in condition_of(job, "Valid")["message"]
    assert cluster.made() == {}
    [(reason, message)] = cluster.events()
    assert (reason, sentence in message) == ("Invalid", True)


def test_a_corrected_job_starts(cluster: Cluster) -> None:
    cluster.create({"fabric": "token-ring"})
    cluster.settle()
    cluster.change(fabric="none")
    assert holds(cluster.settle(), "Valid") == "True"
    assert "Job/digits" in cluster.made()


def test_an_object_of_somebody_else_is_not_changed(cluster: Cluster) -> None:
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {"app": "theirs"}}, "spec": {}}
    cluster.server.put(f"/api/v1{SPACE}/services/digits", foreign)
    cluster.create({})
    job = cluster.settle()
    assert "another Service 'digits'" in condition_of(job, "Valid")["message"]
    assert cluster.made()["Service/digits"]["metadata"]["labels"] == {"app": "theirs"}
    assert "Job/digits" not in cluster.made()


def test_a_job_that_is_created_suspended_has_no_root_before_it_is_resumed(cluster: Cluster) -> None:
    cluster.create({"suspend": True})
    job = cluster.settle()
    assert (job["status"]["phase"], holds(job, "Suspended"), cluster.made()) == ("Suspended", "True", {})
    cluster.change(suspend=False)
    cluster.settle()
    assert cluster.made()["Job/digits"]["spec"]["suspend"] is False


def test_suspend_and_resume_reach_the_root(started: Cluster) -> None:
    for wanted in (True, False):
        started.change(suspend=wanted)
        started.settle()
        assert started.made()["Job/digits"]["spec"]["suspend"] is wanted


def test_scale_reaches_the_root_once_and_one_out_of_bounds_tears_nothing_down(started: Cluster) -> None:
    started.change(replicas=2)
    job = started.settle()
    assert started.made()["Job/digits"]["spec"]["parallelism"] == 2
    assert job["status"]["requestedReplicas"] == 2
    root = started.made()["Job/digits"]
    started.server.put(ROOT, {**root, "spec": {**root["spec"], "parallelism": 1}})  # by quota
    assert started.settle()["status"]["replicas"] == 1
    started.change(replicas=9)
    job = started.settle()
    assert holds(job, "Valid") == "False"
    assert "9" in condition_of(job, "Valid")["message"]
    assert started.made()["Job/digits"]["spec"]["parallelism"] == 1


def ended(cluster: Cluster, kind: str) -> Object:
    """The DDPJob after its root has ended."""
    root = cluster.made()["Job/digits"]
    done = {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z", "message": "so it is"}
    cluster.server.put(ROOT, {**root, "status": {"conditions": [done]}})
    return cluster.settle()


def test_a_finished_job_is_deleted_after_its_time_to_live(cluster: Cluster) -> None:
    cluster.create({"ttl": "1h"})
    cluster.settle()
    assert "ttlSecondsAfterFinished" not in cluster.made()["Job/digits"]["spec"]
    cluster.now = 1_767_229_200.0  # 01:00
    job = ended(cluster, "Complete")
    assert (job["status"]["phase"], holds(job, "Succeeded")) == ("Succeeded", "True")
    cluster.now += 3599
    assert cluster.settle()
    cluster.now += 2
    assert cluster.settle() == {}


def test_a_finished_job_stays_finished_whatever_becomes_of_its_root(started: Cluster) -> None:
    ended(started, "Failed")
    started.server.drop(ROOT)
    assert holds(started.settle(), "Failed") == "True"
    assert "Job/digits" not in started.made()


def test_a_root_that_somebody_deleted_is_not_run_a_second_time(started: Cluster) -> None:
    started.server.drop(ROOT)
    job = started.settle()
    assert condition_of(job, "Failed")["reason"] == "RootDeleted"
    assert "Job/digits" not in started.made()


def test_a_root_that_the_watch_does_not_show_yet_is_not_taken_for_deleted(cluster: Cluster) -> None:
    cluster.create({})
    job = cluster.settle()
    cluster.reconciler().reconcile_all([job], {})
    assert holds(cluster.server.objects[DDPJOB], "Failed") == "False"


def test_code_that_is_on_its_way_is_awaited(cluster: Cluster) -> None:
    code = Code("train.py", "print('hello')\n")
    note = {"annotations": {"ddp.dev/code": code.hash}}
    cluster.create({"module": None, "script": "train.py"}, **note)
    own = cluster.reconciler()
    job = cluster.settle(own)
    assert (holds(job, "Valid"), condition_of(job, "Valid")["reason"]) == ("Unknown", "WaitingForCode")
    assert cluster.made() == {}
    [part] = code_parts("digits", code)
    owner = {"apiVersion": "ddp.dev/v1alpha1", "kind": "DDPJob", "name": "digits", "uid": job["metadata"]["uid"]}
    metadata = {"ownerReferences": [owner]}
    sent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {part.entry: part.text}}
    cluster.server.put(f"/api/v1{SPACE}/configmaps/{part.name}", sent)
    cluster.now += 2
    job = cluster.settle(own)
    assert holds(job, "Valid") == "True"
    labels = cluster.made()[f"ConfigMap/{part.name}"]["metadata"]["labels"]
    assert labels["ddp.dev/run-id"] == job["status"]["runId"]


@pytest.mark.parametrize("job_file", JOB_FILES, ids=lambda path: path.name)
def test_the_objects_of_an_example_are_those_that_the_command_makes(cluster: Cluster, job_file: Path) -> None:
    resolved = resolve([read(str(job_file))], DefaultingContext(image=default_image()))
    backend = ClusterBackend(connection=cluster.watching.connection, notice=lambda _: None)
    prepared = prepare_job(resolved, Where(namespace="team"), shown=True).resolve_engine(backend)
    objects = prepared.objects("run")
    job = ddpjob_of(objects)
    metadata = {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", **job["metadata"]}
    owner = cluster.server.put(DDPJOB.replace("digits", metadata["name"]), {**job, "metadata": metadata})
    for item in objects:
        if item["kind"] == "ConfigMap":
            own = {**item["metadata"], "ownerReferences": [dict(owner_reference(owner))]}
            cluster.server.put(f"/api/v1{SPACE}/configmaps/{own['name']}", {**item, "metadata": own})
    cluster.settle()
    made = cluster.made()
    run_id = cluster.server.objects[DDPJOB.replace("digits", metadata["name"])]["status"]["runId"]
    wanted = {key: item for item in prepared.objects(run_id) if (key := name_of(item)) != "Secret"}
    assert {key: plain(made[key]) for key in made if key != "Secret"} == {key: plain(wanted[key]) for key in wanted}


def name_of(item: Object) -> str:
    return "Secret" if item["kind"] == "Secret" else f"{item['kind']}/{item['metadata']['name']}"


def plain(item: Object) -> Object:
    """An object without what a server and its owner add, and without the time of its submission."""
    added = {"uid", "namespace", "resourceVersion", "generation", "creationTimestamp", "ownerReferences"}
    metadata = {key: value for key, value in item["metadata"].items() if key not in added}
    if "ddp.dev/submitted" in metadata.get("annotations", {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != "ddp.dev/submitted"}
    text = json.dumps({**item, "metadata": metadata})
    return dict(json.loads(text.replace('"suspend": true', '"suspend": false')))


def test_a_process_without_the_lease_does_nothing(cluster: Cluster) -> None:
    cluster.create({})
    cluster.reconciler().reconcile_all([cluster.server.objects[DDPJOB]], {}, may_act=lambda: False)
    assert cluster.made() == {}
    assert cluster.logged == []
