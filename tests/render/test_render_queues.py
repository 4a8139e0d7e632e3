"""Queues, gangs, places, slices, volumes: what each key becomes on the objects."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ddp_trainer.common.constants import Label, Role
from ddp_trainer.common.parallel_dims import LayoutRange
from kubectl_ddp import engines
from kubectl_ddp.engines import Engine
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.values.pod import Mount, Rdma, SecretFiles, Topology
from kubectl_ddp.values.program import Gang, QueueResize
from kubectl_ddp.values.quantity import BadValue, NodeRange
from tests.support.jobs import ENGINES, a_job
from tests.support.rendered import RUN, store_job, worker_template

ELASTIC = NodeRange(2, 8)
GROWING = LayoutRange.parse("shard=2:4")


def rendered(**changes: Any) -> list[Object]:
    return render(a_job(**{"nnodes": ELASTIC} | changes), RUN)


def pod(**changes: Any) -> Any:
    return worker_template(rendered(**changes))["spec"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_in_kueues_queue_begins_suspended_since_kueue_lets_it_go(engine: Engine) -> None:
    objects = rendered(engine=engine, queue="team")
    root = job_kinds.root_of(objects)
    assert root["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job_kinds.is_suspend_requested(root)
    assert "schedulerName" not in worker_template(objects)["spec"]
    assert "kueue.x-k8s.io/queue-name" not in store_job(objects)["metadata"]["labels"]
    assert not job_kinds.is_suspend_requested(job_kinds.root_of(rendered(engine=engine)))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_priority_in_kueues_queue_is_the_jobs_and_not_that_of_its_pods(engine: Engine) -> None:
    objects = rendered(engine=engine, queue="team", queue_priority="urgent")
    label = "kueue.x-k8s.io/priority-class"
    [carrier] = [item for item in objects if label in item["metadata"].get("labels", {})]
    assert (carrier, carrier["metadata"]["labels"][label]) == (job_kinds.root_of(objects), "urgent")
    assert label not in worker_template(objects)["metadata"]["labels"]
    assert "priorityClassName" not in worker_template(objects)["spec"]
    plain = job_kinds.root_of(rendered(engine=engine, queue="team", priority="high"))
    assert label not in plain["metadata"]["labels"]


def test_the_jobset_that_a_trainjob_becomes_is_in_no_queue_or_kueue_would_count_the_job_twice() -> None:
    [runtime] = [item for item in rendered(engine=Engine.TRAINJOB, queue="team") if item["kind"] == "TrainingRuntime"]
    assert "metadata" not in runtime["spec"]["template"]


def test_kueue_may_begin_an_elastic_indexed_job_with_the_least_number_of_nodes() -> None:
    partial = {"kueue.x-k8s.io/job-min-parallelism": "2", "kueue.x-k8s.io/job-completions-equal-parallelism": "true"}
    annotations = job_kinds.root_of(rendered(engine=Engine.JOB, queue="team"))["metadata"]["annotations"]
    assert partial.items() <= annotations.items()
    for changes in ({"engine": Engine.JOBSET}, {"engine": Engine.JOB, "nnodes": NodeRange(8, 8)}):
        annotations = job_kinds.root_of(rendered(queue="team", **changes))["metadata"]["annotations"]
        assert not partial.keys() & annotations.keys()


def test_a_job_that_kueue_resizes_while_it_runs_starts_with_its_minimum() -> None:
    root = job_kinds.root_of(rendered(engine=Engine.JOB, queue="team", queue_resize=QueueResize.RUNNING))
    annotations = root["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/elastic-job"] == "true"
    assert "kueue.x-k8s.io/job-min-parallelism" not in annotations, "Kueue refuses both"
    least = job_kinds.bounds(root)[0]
    assert (root["spec"]["parallelism"], root["spec"]["completions"]) == (least, least)


def test_kueue_may_begin_an_indexed_job_without_its_spares() -> None:
    root = job_kinds.root_of(rendered(engine=Engine.JOB, queue="team", nnodes=NodeRange(8, 8), spares=1))
    assert root["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "8"
    assert root["spec"]["parallelism"] == 9


@pytest.mark.parametrize("engine", [Engine.PYTORCHJOB, Engine.JOBSET, Engine.JOB])
def test_kueue_keeps_the_pods_of_each_replica_in_one_domain(engine: Engine) -> None:
    size = {"nnodes": NodeRange(4, 4), "nproc": 2, "parallel": LayoutRange.parse("replicate=2,shard=2,pp=2")}
    wishes = tuple(map(Topology.parse, ("pack=block", "replica=rack")))
    found = worker_template(rendered(engine=engine, queue="q", gang=Gang.KUEUE, topology=wishes, **size))
    topology = {key: value for key, value in found["metadata"]["annotations"].items() if "kueue" in key}
    assert topology == {
        "kueue.x-k8s.io/podset-preferred-topology": "block",
        "kueue.x-k8s.io/podset-slice-required-topology": "rack",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    assert "rack" not in str(found["spec"])


def annotated(objects: list[Object]) -> dict[str, str]:
    """Return the annotations that Kueue reads about parts of a job and the placement of its pods."""
    text = job_kinds.root_of(objects)["metadata"].get("annotations", {})
    text |= worker_template(objects)["metadata"]["annotations"]
    return {key: value for key, value in text.items() if key.startswith("kueue.x-k8s.io/")}


def test_replicas_that_are_kept_together_are_admitted_all_at_once_and_asked_for_as_a_whole_too() -> None:
    size = {"nnodes": NodeRange(2, 4), "nproc": 1, "parallel": LayoutRange.parse("replicate=1:2,shard=2")}
    common = {"engine": Engine.JOB, "queue": "q", "gang": Gang.KUEUE, **size}
    wanted = {
        "kueue.x-k8s.io/podset-preferred-topology": "cloud/rack",
        "kueue.x-k8s.io/podset-slice-required-topology": "cloud/rack",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    assert annotated(rendered(topology=(Topology.parse("replica=cloud/rack"),), **common)) == wanted
    assert "kueue.x-k8s.io/job-min-parallelism" in annotated(rendered(**common))


@pytest.mark.parametrize(
    ("wishes", "changes", "sentence"),
    [
        ("replica=rack", {"gang": Gang.NONE}, "which Kueue alone does, and the gang is 'none'."),
        ("replica=rack", {"parallel": None}, "and the job has no replicas."),
        ("replica=rack", {"spares": 1}, "and 1 spare would take a place in another domain. Leave spares out"),
        ("replica=rack", {"nproc": 4, "nnodes": NodeRange(1, 1)}, "replicate=2,shard=2' is 2 ranks where a pod has 4."),
        ("replica=rack", {"nnodes": NodeRange(1, 2), "parallel": GROWING}, "4 with 2. Let only replicate change."),
        ("replica=rack replica=block", {}, "A replica is kept in one domain, and the topology names rack and block."),
        ("replica=rack pack=kubernetes.io/hostname pack=block", {}, "hostname, which is narrower than rack, where"),
        ("pack=topology.kubernetes.io/zone:required replica=topology.kubernetes.io/region", {}, "Pack by a wider"),
    ],
)
def test_replicas_that_cannot_be_kept_together_are_refused(wishes: str, changes: dict[str, Any], sentence: str) -> None:
    fixed = {"nnodes": NodeRange(2, 2), "nproc": 2, "queue": "q", "gang": Gang.KUEUE}
    topology = tuple(map(Topology.parse, wishes.split()))
    layout = LayoutRange.parse("replicate=2,shard=2")
    with pytest.raises(UsageError, match=re.escape(sentence)):
        a_job(**{**fixed, "parallel": layout, "topology": topology, **changes})


@pytest.mark.parametrize(
    "wishes",
    [
        "pack=topology.kubernetes.io/region replica=topology.kubernetes.io/zone",
        "pack=kubernetes.io/hostname replica=kubernetes.io/hostname",
        "pack=rack replica=topology.kubernetes.io/zone",  # which is wider, the cluster alone knows
    ],
)
def test_a_job_is_packed_by_the_level_of_its_replicas_or_a_wider_one(wishes: str) -> None:
    size = {"nnodes": NodeRange(4, 4), "nproc": 1, "parallel": LayoutRange.parse("replicate=2,shard=2")}
    common = {"engine": Engine.JOB, "queue": "q", "gang": Gang.KUEUE, **size}
    pack, replica = (wish.partition("=")[2] for wish in wishes.split())
    found = annotated(rendered(topology=tuple(map(Topology.parse, wishes.split())), **common))
    assert found["kueue.x-k8s.io/podset-preferred-topology"] == pack
    assert found["kueue.x-k8s.io/podset-slice-required-topology"] == replica


@pytest.mark.parametrize("text", ["replica=rack", "replica=rack:required"])
def test_a_replica_is_kept_together_or_not_at_all(text: str) -> None:
    assert str(Topology.parse(text)) == "replica=rack"
    with pytest.raises(BadValue):
        Topology.parse("replica=rack:preferred")


@pytest.mark.parametrize(("wish", "force"), [("pack=rack", "preferred"), ("pack=rack:required", "required")])
def test_kueue_packs_by_its_own_topology_when_it_is_the_gang(wish: str, force: str) -> None:
    topology = (Topology.parse("spread=zone"), Topology.parse(wish))
    annotations = worker_template(rendered(queue="q", gang=Gang.KUEUE, topology=topology))["metadata"]["annotations"]
    assert annotations[f"kueue.x-k8s.io/podset-{force}-topology"] == "rack"
    plain = worker_template(rendered(queue="q", topology=topology))["metadata"]["annotations"]
    assert not any("topology" in key for key in plain)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("gang", "group", "scheduler"),
    [
        (Gang.VOLCANO, "scheduling.volcano.sh/v1beta1", "volcano"),
        (Gang.SCHEDULER_PLUGINS, "scheduling.x-k8s.io/v1alpha1", "scheduler-plugins-scheduler"),
    ],
)
def test_a_pod_group_is_the_least_number_of_workers(engine: Engine, gang: Gang, group: str, scheduler: str) -> None:
    objects = rendered(engine=engine, gang=gang)
    [found] = [item for item in objects if item["kind"] == "PodGroup"]
    assert (found["apiVersion"], found["metadata"]["name"], found["spec"]) == (group, "digits", {"minMember": 2})
    worker, store = worker_template(objects), store_job(objects)["spec"]["template"]
    assert worker["spec"]["schedulerName"] == scheduler
    assert "schedulerName" not in store["spec"], "the store is there whether the workers have a place or not"
    names = worker["metadata"]["labels"] | worker["metadata"]["annotations"]
    key = {Gang.VOLCANO: "scheduling.k8s.io/group-name"}.get(gang, "scheduling.x-k8s.io/pod-group")
    assert names[key] == "digits"
    assert key not in store["metadata"]["labels"] | store["metadata"]["annotations"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("version", "reference"),
    [
        ("v1alpha2", {"podGroupTemplateRef": {"workload": {"workloadName": "digits", "podGroupTemplateName": "node"}}}),
        ("v1alpha3", {"workloadRef": {"workloadName": "digits", "templateName": "node"}}),
        ("v1beta1", {"workloadRef": {"workloadName": "digits", "templateName": "node"}}),
    ],
)
def test_the_native_gang_has_the_served_version(engine: Engine, version: str, reference: dict[str, Any]) -> None:
    spec = a_job(nnodes=ELASTIC, engine=engine, gang=Gang.NATIVE, priority="high")
    objects = render(spec, RUN, native_version=version)
    group = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high"}
    workload, pod_group = (item for item in objects if item["apiVersion"] == f"scheduling.k8s.io/{version}")
    assert (workload["kind"], pod_group["kind"]) == ("Workload", "PodGroup"), "admission wants the Workload first"
    kind = engines.ENGINES[engine]
    assert workload["spec"] == {
        "controllerRef": {"apiGroup": kind.group, "kind": kind.kind, "name": "digits"},
        "podGroupTemplates": [{"name": "node", **group}],
    }
    assert pod_group["spec"] == reference | group
    worker, store = worker_template(objects)["spec"], store_job(objects)["spec"]["template"]["spec"]
    assert worker["schedulingGroup"] == {"podGroupName": pod_group["metadata"]["name"]}
    assert "schedulerName" not in worker
    assert "schedulingGroup" not in store, "the store is there whether the workers have a place or not"


def test_kueue_admits_a_job_whose_pods_the_native_gang_places() -> None:
    objects = rendered(engine=Engine.JOB, queue="team", gang=Gang.NATIVE)
    root = job_kinds.root_of(objects)
    assert root["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert root["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "2"
    assert worker_template(objects)["spec"]["schedulingGroup"] == {"podGroupName": "digits"}
    assert {"Workload", "PodGroup"} <= {item["kind"] for item in objects}


def test_volcano_is_told_its_queue_and_the_priority() -> None:
    objects = rendered(gang=Gang.VOLCANO, queue="gpus", priority="high")
    [group] = [item for item in objects if item["kind"] == "PodGroup"]
    assert group["spec"] == {"minMember": 2, "queue": "gpus", "priorityClassName": "high"}
    root = job_kinds.root_of(objects)
    assert "kueue.x-k8s.io/queue-name" not in root["metadata"]["labels"]
    policy = root["spec"]["runPolicy"]["schedulingPolicy"]
    assert policy == {"minAvailable": 2, "queue": "gpus", "priorityClass": "high"}


@pytest.mark.parametrize("engine", ENGINES)
def test_kai_reads_the_least_number_and_the_queue_where_it_groups_pods(engine: Engine) -> None:
    objects = rendered(engine=engine, gang=Gang.KAI, queue="gpus")
    looked_at = job_kinds.root_of(objects)["metadata"]
    assert looked_at["annotations"]["kai.scheduler/batch-min-member"] == "2"
    assert looked_at["labels"]["kai.scheduler/queue"] == "gpus"
    if engine is Engine.TRAINJOB:
        inner = objects[0]["spec"]["template"]["metadata"]
        assert inner["annotations"]["kai.scheduler/batch-min-member"] == "2"
    worker = worker_template(objects)
    assert worker["spec"]["schedulerName"] == "kai-scheduler"
    assert worker["metadata"]["labels"]["kai.scheduler/queue"] == "gpus"


@pytest.mark.parametrize("gang", [gang for gang in Gang if gang not in {Gang.NONE, Gang.KUEUE}])
def test_the_operator_is_told_the_least_number_of_any_gang(gang: Gang) -> None:
    policy = job_kinds.root_of(rendered(gang=gang))["spec"]["runPolicy"]
    assert policy["schedulingPolicy"] == {"minAvailable": 2}
    assert "schedulingPolicy" not in job_kinds.root_of(rendered())["spec"]["runPolicy"]


def test_a_scheduler_of_another_name_is_used_for_the_workers() -> None:
    assert pod(gang=Gang.VOLCANO, scheduler="volcano-2")["schedulerName"] == "volcano-2"
    assert pod(scheduler="mine")["schedulerName"] == "mine"
    assert "schedulerName" not in pod()


@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_are_packed_and_spread_by_the_labels_of_their_machines(engine: Engine) -> None:
    wishes = ("pack=rack:required", "pack=zone", "spread=kubernetes.io/hostname", "spread=zone:required")
    found = pod(engine=engine, topology=tuple(map(Topology.parse, wishes)))
    own = {"matchLabels": {Label.JOB: "digits", Label.ROLE: Role.WORKER, Label.RUN_ID: RUN}}
    assert found["affinity"]["podAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack", "labelSelector": own}],
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": own}}
        ],
    }
    spread = [(item["topologyKey"], item["whenUnsatisfiable"]) for item in found["topologySpreadConstraints"]]
    assert spread == [("kubernetes.io/hostname", "ScheduleAnyway"), ("zone", "DoNotSchedule")]
    assert not {"affinity", "topologySpreadConstraints"} & pod(engine=engine).keys()


def test_the_type_of_a_gpu_is_a_label_of_its_machine() -> None:
    found = pod(gpus=8, nproc=8, gpu_type="NVIDIA-H100-80GB-HBM3", node_selector={"pool": "a"})
    assert found["nodeSelector"] == {"pool": "a", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def test_a_slice_is_asked_for_instead_of_a_gpu() -> None:
    found = pod(gpus=1, nproc=1, mig="3g.40gb", nnodes=NodeRange(1, 1))
    limits = found["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/mig-3g.40gb"] == "1"
    assert "nvidia.com/gpu" not in limits
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in found["tolerations"]


def test_rdma_devices_are_counted_and_need_no_capability_that_restricted_refuses() -> None:
    container = pod(rdma=Rdma("rdma/ib", 8))["containers"][0]
    assert container["resources"]["limits"]["rdma/ib"] == container["resources"]["requests"]["rdma/ib"] == "8"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_volumes_are_mounted_where_they_are_asked_for() -> None:
    found = pod(
        mounts=tuple(map(Mount.parse, ("pvc=data:/data:ro", "configmap=app:/etc/app", "emptydir=10Gi:/scratch"))),
        secrets=(SecretFiles.parse("hub:/secrets/hub"),),
    )
    mounts = {mount["name"]: mount for mount in found["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in found["volumes"]}
    assert volumes["mount-0"]["persistentVolumeClaim"] == {"claimName": "data", "readOnly": True}
    assert mounts["mount-0"] == {"name": "mount-0", "mountPath": "/data", "readOnly": True}
    assert volumes["mount-1"]["configMap"] == {"name": "app"}
    assert mounts["mount-1"]["readOnly"] is True
    assert volumes["mount-2"]["emptyDir"] == {"sizeLimit": "10Gi"}
    assert mounts["mount-2"] == {"name": "mount-2", "mountPath": "/scratch"}
    assert volumes["secret-0"]["secret"] == {"secretName": "hub", "defaultMode": 0o440}
    assert mounts["secret-0"] == {"name": "secret-0", "mountPath": "/secrets/hub", "readOnly": True}
