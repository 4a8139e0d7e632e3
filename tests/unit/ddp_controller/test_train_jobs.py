"""A TrainJob that kubectl or an SDK made gets what the template of its runtime cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from ddp_controller.executor import execute
from ddp_controller.running_job import Resize, running_job
from ddp_controller.train_jobs import JOBSET_NAME, JOBSET_UID, KEY_SECRET, STORE_SECONDS, TrainJobs
from ddp_trainer.common.constants import Annotation, Env, Label, Role
from kubectl_ddp.backends.cluster.http.connection import Connection
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, timestamp
from kubectl_ddp.values.pod import RuntimeMount
from tests.support.api_server import ApiServer
from tests.unit.ddp_controller.ddpjob_cluster import GROUPS, SPACE, Cluster
from tools.docs.training_runtimes import ENGINE, runtime_object

ROOT = f"/apis/trainer.kubeflow.org/v1alpha1{SPACE}/trainjobs/twelve"
INNER = f"/apis/batch/v1{SPACE}/jobs/twelve-node-0"
JOB_SET = f"/apis/jobset.x-k8s.io/v1alpha2{SPACE}/jobsets/twelve"
RUN = "5a3d2c1e-0000-4000-8000-000000000001"
ELASTIC = "ddp-torch-elastic"
ROOT_UID = "5a3d2c1e-0000-4000-8000-000000000000"
COMMAND = ["bash", "-c", "torchrun /tmp/train.py"]


class Kubeflow(Cluster):
    """Objects that Kubeflow Trainer and JobSet make of a TrainJob, and the controller for them."""

    def __init__(self, server: ApiServer, connection: Any) -> None:
        super().__init__(server, connection)
        self.train_jobs = TrainJobs(self.api, log=self.log, clock=lambda: self.now)

    def apply(self, mount: RuntimeMount = RuntimeMount.IMAGE, *, nodes: int = 2, name: str = ELASTIC) -> None:
        size = {"parallelism": nodes, "completions": nodes}
        spec = {"suspend": False, "runtimeRef": {"kind": "ClusterTrainingRuntime", "name": name}}
        metadata = {"namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z", "name": "twelve"}
        root = {"apiVersion": ENGINE.api_version, "kind": "TrainJob", "metadata": {**metadata, "uid": ROOT_UID}}
        self.server.put(ROOT, {**root, "spec": spec})
        owned = {**metadata, "name": "twelve-node-0"}
        self.server.put(INNER, {"apiVersion": "batch/v1", "kind": "Job", "metadata": owned, "spec": {**size}})
        spec = {"replicatedJobs": [{"name": "node", "template": {"spec": {**size}}}]}
        owned = {**metadata, "uid": RUN, "ownerReferences": [{"uid": ROOT_UID}]}
        job_set = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": owned, "spec": spec}
        self.server.put(JOB_SET, job_set)
        template = job_kinds.at(runtime_object(name, "1:64" if "elastic" in name else "", mount), ENGINE.template)
        for number in range(nodes):
            self.add_pod(template, number, nodes)

    def add_pod(self, template: Object, number: int, nodes: int) -> None:
        pod = deepcopy(template)
        pod["metadata"] |= {"name": f"twelve-node-0-{number}", "namespace": "team"}
        pod["metadata"]["labels"] |= {JOBSET_NAME: "twelve", JOBSET_UID: RUN}
        container = pod["spec"]["containers"][0]
        container |= {"image": "example.com/theirs:1", "command": COMMAND}
        container["env"] += [{"name": "PET_NPROC_PER_NODE", "value": "4"}, {"name": "PET_NNODES", "value": str(nodes)}]
        path = f"/api/v1{SPACE}/pods/{pod['metadata']['name']}"
        self.server.put(path, {"apiVersion": "v1", "kind": "Pod", **pod, "status": {"phase": "Pending"}})

    def reconcile(self) -> None:
        for _ in range(3):
            world = self.world()
            self.train_jobs.reconcile(world.unlabeled_pods(), world.train_jobs())

    def root(self) -> Object:
        return self.server.objects[ROOT]

    def job_set_size(self) -> Object:
        return dict(self.server.objects[JOB_SET]["spec"]["replicatedJobs"][0]["template"]["spec"])

    def annotate(self, **annotations: str) -> None:
        """Add annotations to the TrainJob and reconcile."""
        self.root()["metadata"]["annotations"] |= annotations
        self.server.put(ROOT, self.root())
        self.reconcile()

    def change_pod(self, change: Callable[[Object], object]) -> None:
        """Change the first pod and reconcile."""
        path = f"/api/v1{SPACE}/pods/twelve-node-0-0"
        change(self.server.objects[path])
        self.server.put(path, self.server.objects[path])
        self.reconcile()


@pytest.fixture
def kubeflow(server: ApiServer, connection: Connection) -> Kubeflow:
    server.groups = GROUPS
    return Kubeflow(server, connection)


@pytest.mark.parametrize("mount", [*RuntimeMount])
def test_it_gets_store_network_and_labels_and_its_fields_stay(kubeflow: Kubeflow, mount: RuntimeMount) -> None:
    kubeflow.apply(mount)
    spec = deepcopy(kubeflow.root()["spec"])
    kubeflow.reconcile()
    root, made = kubeflow.root(), kubeflow.made()
    assert (root["spec"], root.get("status")) == (spec, None)
    owned = {"Job/twelve-store", "Service/twelve-store", "NetworkPolicy/twelve"}
    owners = {name: made[name]["metadata"]["ownerReferences"][0]["uid"] for name in owned}
    assert set(owners.values()) == {root["metadata"]["uid"]}
    labels = {Label.JOB.value: "twelve", Label.RUN_ID.value: RUN}
    named = [root, made["Pod/twelve-node-0-0"], made["Pod/twelve-node-0-1"], *(made[name] for name in owned)]
    assert all(labels.items() <= item["metadata"]["labels"].items() for item in named)
    submitted = json.loads(root["metadata"]["annotations"][Annotation.SPEC])
    expected = {"nnodes": "1:64", "nproc": 4, "image": "example.com/theirs:1", "command": COMMAND}
    assert expected.items() <= submitted.items()


def test_the_store_derives_the_secret_as_the_workers_do(kubeflow: Kubeflow) -> None:
    kubeflow.apply()
    kubeflow.reconcile()
    made = kubeflow.made()
    worker, store = made["Pod/twelve-node-0-0"]["spec"], made["Job/twelve-store"]["spec"]["template"]["spec"]
    [foreign], [own] = worker["initContainers"], store["initContainers"]
    [run_id] = own.pop("env")
    del foreign["env"]
    assert (own, run_id) == (foreign, {"name": Env.RUN_ID.value, "value": RUN})
    mounted = {item["name"] for item in foreign["volumeMounts"]}
    volumes = [[item for item in pod["volumes"] if item["name"] in mounted] for pod in (worker, store)]
    assert volumes[0] == volumes[1] != []
    assert made["Secret"]["metadata"]["name"] == KEY_SECRET


def test_a_fixed_runtime_takes_the_number_of_nodes_of_the_trainjob(kubeflow: Kubeflow) -> None:
    kubeflow.apply(nodes=3, name="ddp-torch")
    kubeflow.reconcile()
    assert json.loads(kubeflow.root()["metadata"]["annotations"][Annotation.SPEC])["nnodes"] == "3"


def test_a_pod_that_comes_later_is_labelled(kubeflow: Kubeflow) -> None:
    kubeflow.apply()
    kubeflow.reconcile()
    template = job_kinds.at(runtime_object(ELASTIC, "1:64", RuntimeMount.IMAGE), ENGINE.template)
    kubeflow.add_pod(template, 2, 3)
    kubeflow.server.requests.clear()
    kubeflow.reconcile()
    writes = [(item.method, item.path) for item in kubeflow.server.requests if item.method != "GET"]
    key = "POST", f"/api/v1{SPACE}/secrets"  # it is there, unless somebody has deleted it
    assert writes == [key, ("PATCH", f"/api/v1{SPACE}/pods/twelve-node-0-2")]


def test_its_size_follows_the_annotation_in_the_job_set_and_then_in_the_job(kubeflow: Kubeflow) -> None:
    kubeflow.apply()
    kubeflow.reconcile()
    kubeflow.annotate(**{Annotation.NODES: "3"})
    assert kubeflow.job_set_size() == {"parallelism": 3, "completions": 3}
    kubeflow.now += 60
    kubeflow.annotate(touched="1")
    inner = kubeflow.server.objects[INNER]["spec"]
    assert (inner["parallelism"], inner["completions"]) == (3, 3)


def test_the_store_of_one_that_ended_without_a_launcher_is_stopped(kubeflow: Kubeflow) -> None:
    kubeflow.apply()
    kubeflow.reconcile()
    store = f"/apis/batch/v1{SPACE}/jobs/twelve-store"
    labels = {Label.JOB: "twelve", Label.ROLE: Role.STORE, Label.RUN_ID: RUN}
    running = {"phase": "Running", "containerStatuses": [{"name": "store", "state": {"running": {}}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "twelve-store-0", "namespace": "team"}}
    pod["metadata"] |= {"labels": {str(key): str(value) for key, value in labels.items()}}
    kubeflow.server.put(f"/api/v1{SPACE}/pods/twelve-store-0", pod | {"spec": {}, "status": running})
    kubeflow.reconcile()
    assert "suspend" not in kubeflow.server.objects[store]["spec"]
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": timestamp(kubeflow.now)}
    kubeflow.server.put(ROOT, {**kubeflow.root(), "status": {"conditions": [complete]}})
    kubeflow.reconcile()
    assert "suspend" not in kubeflow.server.objects[store]["spec"], "it may end by itself"
    kubeflow.now += STORE_SECONDS + 1
    kubeflow.reconcile()
    assert kubeflow.server.objects[store]["spec"]["suspend"] is True


def test_a_move_has_a_temporary_pod_beyond_a_fixed_size(kubeflow: Kubeflow) -> None:
    kubeflow.apply(name="ddp-torch")
    kubeflow.reconcile()
    job = running_job(Snapshot(kubeflow.root(), ()), {})
    note = {Annotation.MOVE: json.dumps({"size": 2, "since": 1})}
    execute(kubeflow.api, Resize(job=job, size=3, annotations=note, action="surge", reason="cordoned"))
    assert job_kinds.desired_nodes(kubeflow.root()) == 3
    kubeflow.reconcile()
    assert kubeflow.job_set_size() == {"parallelism": 3, "completions": 3}


@pytest.mark.parametrize("claim", [{JOBSET_UID: "5a3d2c1e-0000-4000-8000-00000000000f"}, {JOBSET_NAME: "other"}])
def test_a_pod_that_only_says_to_be_of_a_trainjob_changes_nothing(kubeflow: Kubeflow, claim: dict[str, str]) -> None:
    kubeflow.apply(nodes=1)
    kubeflow.change_pod(lambda pod: pod["metadata"]["labels"].update(claim))
    assert [item.path for item in kubeflow.server.requests if item.method != "GET"] == []


@pytest.mark.parametrize(("name", "nodes"), [(ELASTIC, "0"), (ELASTIC, "65"), ("ddp-torch", "3")])
def test_a_size_beyond_the_runtime_has_an_event(kubeflow: Kubeflow, name: str, nodes: str) -> None:
    kubeflow.apply(name=name)
    kubeflow.reconcile()
    kubeflow.annotate(**{Annotation.NODES: nodes})
    assert [reason for reason, _ in kubeflow.events()] == ["NotScaled"]
    assert kubeflow.server.objects[INNER]["spec"]["parallelism"] == 2


@pytest.mark.parametrize("memory", ["1073741824", "1e9", "2Gi"])
def test_every_quantity_of_kubernetes_is_taken(kubeflow: Kubeflow, memory: str) -> None:
    kubeflow.apply(nodes=1)
    kubeflow.change_pod(lambda pod: pod["spec"]["containers"][0].update(resources={"limits": {"memory": memory}}))
    assert kubeflow.events() == []
    assert Annotation.SPEC in kubeflow.root()["metadata"]["annotations"]


def test_one_that_hides_the_launcher_has_an_event(kubeflow: Kubeflow) -> None:
    kubeflow.apply()

    def hide(pod: Object) -> None:
        [paths] = [item for item in pod["spec"]["containers"][0]["env"] if item["name"] == "PYTHONPATH"]
        paths["value"] = "/theirs"

    kubeflow.change_pod(hide)
    assert [reason for reason, _ in kubeflow.events()] == ["NotManaged"]


def test_one_that_cannot_be_managed_has_an_event_and_is_tried_again_later(kubeflow: Kubeflow) -> None:
    kubeflow.apply()
    limits = {"nvidia.com/gpu": "100000"}
    kubeflow.change_pod(lambda pod: pod["spec"]["containers"][0].update(resources={"limits": limits}))
    [(reason, message)] = kubeflow.events()
    assert reason == "NotManaged"
    assert "gpus" in message
    refused = [item for item in kubeflow.logged if item["event"] == "refused"]
    kubeflow.reconcile()
    assert [item for item in kubeflow.logged if item["event"] == "refused"] == refused
    kubeflow.now += 3
    kubeflow.reconcile()
    kubeflow.now += 3  # the second pause is twice as long
    kubeflow.reconcile()
    assert len([item for item in kubeflow.logged if item["event"] == "refused"]) == len(refused) + 1
