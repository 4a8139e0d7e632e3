"""TrainJobs that ``kubectl apply`` or Kubeflow's SDK makes of the platform's ClusterTrainingRuntimes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from bench.drivers.node_access import NodeAccess
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.errors import NotFound
from kubectl_ddp.values.engine import Engine
from kubectl_ddp.values.pod import RuntimeMount
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_any_image import RUNTIME as RUNTIME_IMAGE
from tests.cluster.test_cluster_controller import controller
from tests.cluster.test_cluster_engines import need
from tests.cluster.test_cluster_faults import HURRY, NAME, PACED, Job
from tools.docs.training_runtimes import RUNTIMES, runtime

pytestmark = pytest.mark.alone  # the runtimes belong to the whole cluster
ENGINE = ENGINES[Engine.TRAINJOB]
RUNTIME_PATH = f"/apis/{ENGINE.api_version}/clustertrainingruntimes"


@pytest.fixture
def runtimes(api: Api, space: Namespace, controller_image: str) -> Iterator[None]:
    """The runtimes of the platform's chart, deleted again."""
    need(space, ENGINE.name)
    if RUNTIME_IMAGE not in os.environ:
        pytest.skip(f"Set {RUNTIME_IMAGE} to the target 'runtime' of the Dockerfile.")
    images = {"images/trainer": space.image, "images/runtime": os.environ[RUNTIME_IMAGE]}
    images["images/controller"] = controller_image
    for name, nodes in RUNTIMES.items():
        text = json.dumps(runtime(name, nodes, RuntimeMount.COPY))
        for word, image in images.items():
            text = text.replace(word, image)
        api.apply(f"{RUNTIME_PATH}/{name}", json.loads(text))
    yield
    for name in RUNTIMES:
        api.delete(f"{RUNTIME_PATH}/{name}", uid=api.get(f"{RUNTIME_PATH}/{name}")["metadata"]["uid"])


def train_job(space: Namespace, command: list[str], *, nodes: int, **trainer: Any) -> dict[str, Any]:
    size = {"cpu": "500m", "memory": "1Gi"}
    resources = {"requests": size, "limits": size}
    settings = {"image": space.image, "numNodes": nodes, "numProcPerNode": 1, "resourcesPerNode": resources}
    return {
        "apiVersion": ENGINE.api_version,
        "kind": ENGINE.kind,
        "metadata": {"name": NAME},
        "spec": {
            "runtimeRef": {"name": "ddp-torch-elastic"},
            "trainer": {**settings, "command": command, **trainer},
        },
    }


def lose_drained_pod(job: Job) -> None:
    """A drain evicts a pod: its rank leaves after a step, before the pod ends."""
    pod = job.space.pods()[-1]
    until("an eviction that the budget allows", lambda: _is_evicted(job.space.api, pod))
    until("the pod gone", lambda: pod["metadata"]["uid"] not in {each["metadata"]["uid"] for each in job.space.pods()})
    job.wait("world-size=2")
    job.go_on()


def _is_evicted(api: Api, pod: dict[str, Any]) -> bool:
    try:
        api.evict(pod)
    except NotFound:
        return True
    return True


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("runtimes")
def test_one_in_the_words_of_the_sdk_is_scaled_and_loses_pods_and_no_sample(
    space: Namespace, reach: NodeAccess
) -> None:
    script = f'read -r -d \'\' SCRIPT << EOM\n\n{PACED.read_text()}\nEOM\nprintf "%s" "$SCRIPT" > "paced.py"\n'
    flags = "--global-batch 64 --seed 0 --epochs 100000 --early-stop clock:1"
    job, command = Job(space, reach), ["bash", "-c", f"{script}torchrun paced.py {flags}"]
    with controller(space, "--ddpjobs"):
        wanted = train_job(space, command, nodes=1, env=[{"name": "HURRY", "value": HURRY}])
        space.api.create(space.path(ENGINE.api_version, ENGINE.plural), wanted)
        until("a job of the command line", lambda: space.ddp("status", NAME).code == 0)
        job.wait("world-size=1")
        job.go_on()
        job.befall("scale", "pod", "container", "launcher")
        lose_drained_pod(job)
        assert "It does not hang" in space.ddp("hang", NAME).ok().out
        assert space.ddp("list").ok().out.count(NAME) == 1
        job.succeeds()
        found = space.api.get(space.path(ENGINE.api_version, ENGINE.plural, NAME))
        assert found["spec"] == found["spec"] | {key: wanted["spec"][key] for key in ("trainer",)}
        assert any(each["type"] == "Complete" for each in found["status"]["conditions"])
        space.ddp("delete", "-y", NAME).ok()
        until("nothing left", lambda: not [each for each in space.left() if "ddp-namespace-key" not in each])
