"""Every engine on a real cluster: the API server accepts all objects and pods."""

from __future__ import annotations

import functools

import pytest

from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import ENGINES as ENGINE_KINDS
from kubectl_ddp.errors import Forbidden
from tests.cluster.live_cluster import Json, Namespace, until
from tests.support.rendered import templates

ENGINES = tuple(ENGINE_KINDS)
SMALL = ("--nproc", "1", "--cpu", "500m", "--memory", "1Gi", "--shm", "128Mi", "--module", "ddp_trainer")
SCENARIOS = {
    "plain": ("--nnodes", "2"),
    "elastic": (
        *("--nnodes", "1:4", "--deadline", "2h", "--ttl", "1d", "--egress", "closed", "--env", "A=b"),
        *("--toleration", "dedicated=training:NoSchedule", "--node-selector", "disk=ssd", "--grace", "2m"),
        *("--secret-env", "TOKEN=hub:token", "--env-from", "configmap/settings", "--checkpoint-claim", "shared"),
    ),
    "queued": ("--nnodes", "2:4", "--queue", "team"),
    "placed": (
        *("--nnodes", "4", "--gpus", "1", "--gpu-type", "H100", "--topology", "pack=rack:required"),
        *("--topology", "spread=kubernetes.io/hostname", "--rdma", "rdma/ib=1", "--scheduler", "mine"),
    ),
    "mounted": (
        *("--nnodes", "1", "--mount", "pvc=data:/data:ro", "--mount", "configmap=app:/app"),
        *("--mount", "emptydir=1Gi:/more", "--secret", "hub:/secrets/hub", "--mig", "1g.10gb"),
    ),
}
PLURALS = {
    "Job": "jobs",
    "Secret": "secrets",
    "Service": "services",
    "NetworkPolicy": "networkpolicies",
    "TrainingRuntime": "trainingruntimes",
}


def need(space: Namespace, engine: str) -> None:
    """Skip where the engine's operator is not installed."""
    root = ENGINE_KINDS[engine]
    try:
        space.api.get(space.path(root.api_version, root.plural))
    except NotServed:
        pytest.skip(f"This cluster does not serve {root.kind}.")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_api_server_takes_every_object_and_every_pod_of_an_engine(space: Namespace, engine: str) -> None:
    need(space, engine)
    for scenario, flags in SCENARIOS.items():
        words = ("--name", f"{engine}-{scenario}", "--image", space.image, "--engine", engine, *flags, *SMALL)
        objects = space.ddp("render", *words, "-o", "json", "--", "train").ok().json["items"]
        for item in objects:
            if item["kind"] == "PodMonitor":
                continue
            plural = PLURALS.get(item["kind"]) or ENGINE_KINDS[engine].plural
            path = space.path(item["apiVersion"], plural)
            if item["kind"] == "TrainingRuntime":  # the webhook refuses a TrainJob whose runtime it has not seen
                space.api.create(path, item)
            elif item["kind"] == "TrainJob":
                until("a runtime that the webhook knows", functools.partial(_is_taken, space, path, item))
            else:
                space.api.create(path, item, dryRun="All")
        for number, template in enumerate(templates(objects)):
            pod = {"metadata": {"name": f"p{number}", **template["metadata"]}, "spec": template["spec"]}
            space.api.create(space.path("v1", "pods"), pod, dryRun="All")


def _is_taken(space: Namespace, path: str, item: Json) -> bool:
    try:
        space.api.create(path, item, dryRun="All")
    except Forbidden as refusal:
        if "not found" not in str(refusal):
            raise
        return False
    return True
