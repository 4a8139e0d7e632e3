"""A crowd for measurements: jobs and pods on simulated nodes of a real API server, and metrics behind some of them."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from bench.drivers.pod_metrics import RANKS, PodMetrics
from bench.harness import CannotMeasure, Options
from ddp_trainer.common.constants import PortName, Role
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.engines import PYTORCHJOB
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.render import render
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.program import Module
from kubectl_ddp.values.quantity import Cpu, Memory, NodeRange

Json = dict[str, Any]

WRITERS: Final = 8
NODES: Final = "type=kwok"
"""Label of simulated nodes, by kwok's own convention."""
TOLERATION: Final = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
NOBODYS: Final = "kueue.x-k8s.io/multikueue"
"""The manager that no operator here is, so that the jobs' status stays what we say."""
LEAST_NODES: Final = 10
NODES_READY_SECONDS: Final = 60
KNOWN_SECONDS: Final = 10
READY_SECONDS: Final = 300
GONE_SECONDS: Final = 600
"""Timeout for the deletion of ten thousand pods one by one, with a request to each of their nodes."""


def cluster() -> Api:
    """The cluster of the kubeconfig. Raises CannotMeasure."""
    try:
        api = Api(connect())
        api.get(collection(PYTORCHJOB.api_version, PYTORCHJOB.plural, "default"))
    except DdpError as error:
        raise CannotMeasure(f"A cluster with the training operator is needed: {error}") from error
    return api


@contextlib.contextmanager
def simulated_nodes(api: Api, options: Options) -> Iterator[list[str]]:
    """Names of ten nodes or more whose pods only pretend to run; those that had to be made are deleted afterwards.

    Raises CannotMeasure if no simulator runs.
    """
    ready = _ready_nodes(api)
    missing = [f"ddp-bench-{secrets.token_hex(4)}" for _ in range(LEAST_NODES - len(ready))]
    made: dict[str, str] = {}
    try:
        for name in missing:
            made[name] = api.create("/api/v1/nodes", _node(name))["metadata"]["uid"]
        end = time.monotonic() + NODES_READY_SECONDS
        while made.keys() - set(ready := _ready_nodes(api)):
            if time.monotonic() > end:
                raise CannotMeasure(f"Nobody simulates nodes: kwok should run here, for nodes of label {NODES}.")
            time.sleep(1.0)
        yield ready
    finally:
        if made:
            options.progress(f"deleting {len(made)} simulated nodes")
        for name, uid in made.items():
            with contextlib.suppress(NotFound):
                api.delete(f"/api/v1/nodes/{name}", uid=uid)


def _ready_nodes(api: Api) -> list[str]:
    nodes, _ = api.items("/api/v1/nodes", labelSelector=NODES)
    return [node["metadata"]["name"] for node in nodes if _is_ready(node)]


def _is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _node(name: str) -> Json:
    label, _, value = NODES.partition("=")
    amount = {"cpu": "128", "memory": "1Ti", "pods": "1000"}
    return {
        "metadata": {"name": name, "labels": {label: value}, "annotations": {TOLERATION["key"]: "fake"}},
        "spec": {"taints": [{"key": TOLERATION["key"], "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": amount, "allocatable": amount},
    }


@dataclass(frozen=True)
class SimulatedJobs:
    """Jobs in a namespace of their own."""

    namespace: str
    jobs: int
    pods: int


@contextlib.contextmanager
def simulated_jobs(
    api: Api,
    options: Options,
    metrics: PodMetrics,
    nodes: Sequence[str],
    *,
    jobs: int,
    pods_of_each: int,
    telling: int = 1,
) -> Iterator[SimulatedJobs]:
    """Run this many jobs of this many pods, and delete them afterwards. The first pods of each job serve metrics."""
    space = f"ddp-bench-{secrets.token_hex(4)}"
    made = api.create("/api/v1/namespaces", {"metadata": {"name": space}})
    try:
        options.progress(f"creating {jobs} jobs and {jobs * pods_of_each} pods in {space}")
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(lambda job: _job(api, space, job, pods_of_each, nodes, metrics.address[1]), range(jobs)))
        _wait_until_running(api, space, jobs * pods_of_each)
        with ThreadPoolExecutor(WRITERS) as writers:
            speaking = [(job, index) for job in range(jobs) for index in range(min(telling, pods_of_each))]
            list(writers.map(lambda pod: _patch_pod_ip(api, space, _name(*pod), metrics.address), speaking))
        yield SimulatedJobs(space, jobs, jobs * pods_of_each)
    finally:
        options.progress(f"deleting {space}")
        _empty(api, options, space, made["metadata"]["uid"])


def _job(api: Api, space: str, number: int, pods: int, nodes: Sequence[str], port: int) -> None:
    """One job as submit renders it, and its pods as the operator would make them, each bound to a node."""
    spec = _spec(number, pods)
    root, *_ = [item for item in render(spec, secrets.token_hex(6)) if item["kind"] == PYTORCHJOB.kind]
    root["spec"]["runPolicy"]["managedBy"] = NOBODYS
    path = collection(PYTORCHJOB.api_version, PYTORCHJOB.plural, space)
    made = api.create(path, root)
    now = made["metadata"]["creationTimestamp"]
    true = {"status": "True", "lastUpdateTime": now, "lastTransitionTime": now, "reason": "x", "message": "It runs."}
    conditions = [{"type": kind, **true} for kind in ("Created", "Running")]
    api.merge(
        f"{path}/{spec.name}/status",
        {"status": {"startTime": now, "conditions": conditions, "replicaStatuses": {"Worker": {"active": pods}}}},
    )
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    for index in range(pods):
        node = nodes[(number * pods + index) % len(nodes)]
        _create_pod(api, space, _pod(template, made, index, node, port))


def _create_pod(api: Api, space: str, pod: Json) -> None:
    """Create it as soon as every webhook that looks at pods, such as Kueue's, knows the namespace."""
    end = time.monotonic() + KNOWN_SECONDS
    while True:
        try:
            api.create(collection("v1", "pods", space), pod)
        except NotFound:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _spec(number: int, pods: int) -> JobSpec:
    sizes = {"cpu": Cpu(4000), "memory": Memory(2**34), "shm": Memory(2**30)}
    program: dict[str, Any] = {"program": Module("ddp_trainer"), "args": ("train", "--task", "digits")}
    return JobSpec(
        name=f"job-{number:04}",
        nnodes=NodeRange(1, pods),
        nproc=RANKS,
        image="example.com/trainer:1",
        **program,
        **sizes,
    )


def _name(number: int, index: int) -> str:
    return f"job-{number:04}-worker-{index}"


def _pod(template: Json, root: Json, index: int, node: str, port: int) -> Json:
    metadata, spec = template["metadata"], deepcopy(template["spec"])
    name = root["metadata"]["name"]
    for entry in spec["containers"][0]["ports"]:
        if entry["name"] == PortName.METRICS:
            entry["containerPort"] = port
    owner = {key: root[key] for key in ("apiVersion", "kind")} | {
        "name": name,
        "uid": root["metadata"]["uid"],
        "controller": True,
    }
    labels = metadata["labels"] | {"training.kubeflow.org/replica-index": str(index)}
    tolerations = [*spec.get("tolerations", ()), TOLERATION]
    return {
        "metadata": {
            "name": f"{name}-{Role.WORKER}-{index}",
            "labels": labels,
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": {**spec, "nodeName": node, "tolerations": tolerations},
    }


def _wait_until_running(api: Api, space: str, wanted: int) -> None:
    end = time.monotonic() + READY_SECONDS
    path = collection("v1", "pods", space)
    while True:
        page = api.get(path, fieldSelector="status.phase=Running", limit="1")
        count = len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)
        if "continue" in page["metadata"] and "remainingItemCount" not in page["metadata"]:
            count = len(api.items(path, reduce=lambda pod: pod["metadata"] if _runs(pod) else None)[0])
        if count >= wanted:
            return
        if time.monotonic() > end:
            raise CannotMeasure(f"{wanted} simulated pods should run after {READY_SECONDS} s, and {count} do.")
        time.sleep(1.0)


def _runs(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def _patch_pod_ip(api: Api, space: str, pod: str, address: tuple[str, int]) -> None:
    status = {"podIP": address[0], "podIPs": [{"ip": address[0]}]}
    api.merge(f"{collection('v1', 'pods', space)}/{pod}/status", {"status": status})


def _empty(api: Api, options: Options, space: str, uid: str) -> None:
    """Delete the namespace with all that is in it, and wait until it is gone: the next crowd must not share with it."""
    path = f"/api/v1/namespaces/{space}"
    api.delete(path, uid=uid)
    end = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(NotFound):
        while time.monotonic() < end:
            api.get(path)
            time.sleep(1.0)
        options.progress(f"{space} is still being deleted after {GONE_SECONDS} s")
