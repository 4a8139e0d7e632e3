"""One job on all engines: the same pods and companions, the same exit codes, each engine's traps avoided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from ddp_trainer.common.constants import Exit, Label, Role
from kubectl_ddp.engines import ENGINES as ENGINE_KINDS
from kubectl_ddp.engines import POD_JOB, Engine, Path
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, engine_of, render
from kubectl_ddp.render.objects import PLACEHOLDER
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import ANY_JOB, ENGINES, a_job, jobs
from tests.support.rendered import RUN, store_job, worker_job, worker_template

RUN_POLICY = ("spec", "runPolicy")
BATCH = (Engine.TRAINJOB, Engine.JOBSET, Engine.JOB)
"""Engines whose pods are created by a batch Job."""


def objects_of(engine: Engine, **changes: Any) -> list[Object]:
    return render(a_job(engine=engine, **changes), RUN, run_secret=PLACEHOLDER)


@pytest.mark.parametrize(
    ("engine", "kinds"),
    [
        (Engine.PYTORCHJOB, ["PyTorchJob", "Secret"]),
        (Engine.TRAINJOB, ["TrainingRuntime", "TrainJob", "Secret"]),
        (Engine.JOBSET, ["JobSet", "Secret"]),
        (Engine.JOB, ["Job", "Secret", "Service"]),
    ],
)
def test_each_engine_has_its_root_and_all_have_the_same_companions(engine: Engine, kinds: list[str]) -> None:
    found = [item["kind"] for item in objects_of(engine)]
    assert found == [*kinds, "Job", "Service", "NetworkPolicy", "PodMonitor"]


@pytest.mark.parametrize("engine", ENGINES)
def test_spares_are_pods_beyond_the_maximum_of_a_group(engine: Engine) -> None:
    objects = objects_of(engine, nnodes=NodeRange(2, 4), spares=2)
    root = job_kinds.root_of(objects)
    assert job_kinds.desired_nodes(root) == 6
    assert job_kinds.bounds(root) == (2, 4)
    assert [job_kinds.pod_count(root, nodes) for nodes in (2, 3, 4)] == [2, 3, 6]
    assert "--nnodes=2:4" in worker_template(objects)["spec"]["containers"][0]["args"]
    if engine in BATCH:
        job = worker_job(objects)
        assert job["completions"] == job["parallelism"] == 6
        assert job["successPolicy"] == {"rules": [{"succeededCount": 2}]}


def test_the_pods_are_the_same_on_every_engine() -> None:
    expected = worker_template(objects_of(Engine.PYTORCHJOB))
    for engine in BATCH:
        found = worker_template(objects_of(engine))
        own = {"restartPolicy": "Never"} | ({"subdomain": "digits"} if engine is Engine.JOB else {})
        assert {key: found["spec"].pop(key) for key in own} == own
        found["spec"]["containers"][0]["name"] = expected["spec"]["containers"][0]["name"]
        assert found == expected


def test_the_companions_are_the_same_on_every_engine() -> None:
    first, *others = ([item for item in objects_of(engine) if job_kinds.kind_of(item) is None] for engine in ENGINES)
    for found in others:
        own = [item for item in found if item not in first]
        assert {item["kind"] for item in own} <= {"TrainingRuntime", "Service"}
        assert [item for item in found if item not in own] == first


@given(jobs())
@ANY_JOB
def test_any_job_has_exactly_one_root_and_its_store_beside_the_workers(spec: JobSpec) -> None:
    objects = render(spec, RUN)
    root = job_kinds.root_of(objects)
    assert root["kind"] == ENGINE_KINDS[engine_of(spec)].kind
    assert job_kinds.bounds(root) == (spec.nnodes.minimum, spec.nnodes.maximum)
    assert job_kinds.processes_per_node(root) == spec.nproc
    assert job_kinds.desired_nodes(root) == spec.largest_pod_count
    assert store_job(objects)["metadata"]["labels"][Label.ROLE] == Role.STORE
    assert worker_template(objects)["metadata"]["labels"][Label.ROLE] == Role.WORKER


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("suspended", [True, False])
def test_a_job_can_be_made_before_it_may_run(engine: Engine, suspended: bool) -> None:
    root = job_kinds.root_of(render(a_job(engine=engine), RUN, suspended=suspended))
    assert job_kinds.is_suspend_requested(root) is suspended
    job_kinds.put(root, ENGINE_KINDS[engine].suspend, value=not suspended)
    assert job_kinds.is_suspend_requested(root) is not suspended


@pytest.mark.parametrize("engine", BATCH)
def test_exit_codes_mean_on_a_batch_job_what_they_mean_to_the_operator(engine: Engine) -> None:
    """Exit codes 1 to 127 fail the job, 128 and above replace the pod, and an evicted pod does not count."""
    job = worker_job(objects_of(engine))
    disrupted, permanent = job["podFailurePolicy"]["rules"]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = permanent["onExitCodes"]
    assert (permanent["action"], codes["operator"]) == ("FailJob", "In")
    assert codes["containerName"] == job["template"]["spec"]["containers"][0]["name"]
    assert set(codes["values"]) == set(range(1, 128))
    retryable = {Exit.TERMINATED, Exit.RENDEZVOUS_LOST, Exit.HANG, Exit.STALE_GENERATION, 137, 139}
    assert not retryable & set(codes["values"])
    assert Exit.DO_NOT_RESTART in codes["values"]


@pytest.mark.parametrize("engine", BATCH)
def test_a_batch_job_keeps_one_pod_per_node_and_ends_with_the_least_of_groups(engine: Engine) -> None:
    job = worker_job(objects_of(engine, nnodes=NodeRange(2, 8), max_restarts=10))
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 8, 8)
    assert job["backoffLimit"] == 80
    assert job["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert (job["podReplacementPolicy"], job["template"]["spec"]["restartPolicy"]) == ("Failed", "Never")


def test_a_backoff_beyond_what_kubernetes_counts_is_the_largest_it_counts() -> None:
    job = worker_job(objects_of(Engine.JOB, nnodes=NodeRange(1, 100_000), max_restarts=100_000_000))
    assert job["backoffLimit"] == 2**31 - 1


@pytest.mark.parametrize(
    ("engine", "deadline", "ttl"),
    [
        (Engine.PYTORCHJOB, (*RUN_POLICY, "activeDeadlineSeconds"), (*RUN_POLICY, "ttlSecondsAfterFinished")),
        (Engine.JOB, ("spec", "activeDeadlineSeconds"), ("spec", "ttlSecondsAfterFinished")),
        (Engine.JOBSET, (*POD_JOB, "activeDeadlineSeconds"), ("spec", "ttlSecondsAfterFinished")),
        (Engine.TRAINJOB, ("spec", "activeDeadlineSeconds"), None),
    ],
)
def test_deadline_and_ttl_stand_where_the_engine_reads_them(engine: Engine, deadline: Path, ttl: Path | None) -> None:
    objects = objects_of(engine, deadline_seconds=60, ttl_seconds=0)
    root = job_kinds.root_of(objects)
    assert job_kinds.at(root, deadline) == 60
    if ttl is not None:
        assert job_kinds.at(root, ttl) == 0
    else:
        assert objects[0]["spec"]["template"]["spec"]["ttlSecondsAfterFinished"] == 0
        assert "activeDeadlineSeconds" not in worker_job(objects)
    without = job_kinds.root_of(objects_of(engine))
    assert job_kinds.at(without, deadline) is None
    assert ttl is None or job_kinds.at(without, ttl) is None


def test_a_set_is_never_begun_anew_since_its_job_counts_already() -> None:
    assert job_kinds.root_of(objects_of(Engine.JOBSET))["spec"]["failurePolicy"] == {"maxRestarts": 0}
    runtime = objects_of(Engine.TRAINJOB)[0]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_a_train_job_brings_its_runtime_and_is_told_how_many() -> None:
    runtime, job, *_ = objects_of(Engine.TRAINJOB, nnodes=NodeRange(2, 8))
    assert runtime["metadata"]["name"] == job["metadata"]["name"] == "digits"
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "digits"}
    assert job["spec"]["runtimeRef"] == reference
    assert job["spec"]["trainer"] == {"numNodes": 8, "numProcPerNode": 2}
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("node", 1)
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    [container] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"
    assert "--nnodes=2:8" in container["args"]
    assert not any(variable["name"].startswith("PET_") for variable in container["env"])


def test_this_machine_is_given_the_kind_that_it_interprets() -> None:
    for engine in Engine:
        assert render(a_job(engine=engine), RUN, site=Site.LOCAL)[0]["kind"] == "PyTorchJob"
    assert engine_of(a_job()) is Engine.PYTORCHJOB
