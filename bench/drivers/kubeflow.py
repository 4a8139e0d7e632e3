"""TrainJobs as users of Kubeflow Trainer write them: of the platform's runtimes, and of Kubeflow's own."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.drivers.cluster_runs import RESTRICTED, SCRIPT, BaselineRun, TrainerRun
from bench.harness import CannotMeasure
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import NotFound
from kubectl_ddp.values.pod import RuntimeMount
from tools.docs.training_runtimes import RUNTIMES, runtime_object

Json = dict[str, Any]

ENGINE: Final = ENGINES[Engine.TRAINJOB]
RUNTIME_PATH: Final = f"/apis/{ENGINE.api_version}/clustertrainingruntimes"
STOCK_RUNTIME: Final = "ddp-test-torch-distributed"
PACED: Final = SCRIPT.with_name("paced.py")
REQUESTS: Final = {"cpu": "300m", "memory": "1Gi"}
"""Size of each node. Four fit on one machine of two processors."""
LIMITS: Final = {"cpu": "2", "memory": "1Gi"}
"""Most that a node can use: both processors while it starts."""
WAIT_SECONDS: Final = 120.0
GATE: Final = "featureGates:\n  ElasticJobSet: true\n"


@contextlib.contextmanager
def platform_runtimes(api: Api, images: Mapping[str, str], mount: RuntimeMount) -> Iterator[None]:
    """The runtimes of the platform's chart, with the images ``trainer``, ``runtime`` and ``controller``."""
    for name, nodes in RUNTIMES.items():
        text = json.dumps(runtime_object(name, nodes, mount))
        for word, image in images.items():
            text = text.replace(f"images/{word}", image)
        api.apply(f"{RUNTIME_PATH}/{name}", json.loads(text))
    try:
        yield
    finally:
        for name in RUNTIMES:
            _delete(api, f"{RUNTIME_PATH}/{name}")


@contextlib.contextmanager
def baseline_runtime(api: Api, image: str) -> Iterator[None]:
    """Kubeflow's runtime ``torch-distributed``, with an image of the cluster and Pod Security ``restricted``."""
    container = {"name": ENGINE.container, "image": image, "securityContext": RESTRICTED}
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    spec = {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": ENGINE.container, "template": job}]}},
    }
    metadata = {"name": STOCK_RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    kind = {"apiVersion": ENGINE.api_version, "kind": "ClusterTrainingRuntime", "metadata": metadata, "spec": spec}
    api.apply(f"{RUNTIME_PATH}/{STOCK_RUNTIME}", kind)
    try:
        yield
    finally:
        _delete(api, f"{RUNTIME_PATH}/{STOCK_RUNTIME}")


def _delete(api: Api, path: str) -> None:
    with contextlib.suppress(NotFound):
        api.delete(path, uid=api.get(path)["metadata"]["uid"])


@contextlib.contextmanager
def elastic_job_sets(api: Api) -> Iterator[None]:
    """Switch on the feature gate ``ElasticJobSet`` of JobSet's controller. Raises CannotMeasure."""
    path = collection("v1", "configmaps", "jobset-system") + "/jobset-manager-config"
    key = "controller_manager_config.yaml"
    try:
        before = api.get(path)["data"][key]
    except (NotFound, KeyError) as error:
        raise CannotMeasure(f"JobSet's controller has no {path}.") from error
    if "featureGates" in before:
        raise CannotMeasure("JobSet's controller has feature gates already.")
    api.merge(path, {"data": {key: before + GATE}})
    try:
        _restart_job_set(api)
        yield
    finally:
        api.merge(path, {"data": {key: before}})
        _restart_job_set(api)


def _restart_job_set(api: Api) -> None:
    path = collection("apps/v1", "deployments", "jobset-system") + "/jobset-controller-manager"
    stamp = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": str(time.time())}}}
    wanted = api.merge(path, {"spec": {"template": stamp}})["metadata"]["generation"]
    pods, deadline = collection("v1", "pods", "jobset-system"), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        status = api.get(path)["status"]
        is_new = status.get("observedGeneration", 0) >= wanted and status.get("updatedReplicas") == 1
        if is_new and status.get("availableReplicas") == 1 and len(api.items(pods)[0]) == 1:
            return
        time.sleep(0.3)
    raise CannotMeasure("JobSet's controller did not start again.")


def train_job(name: str, runtime_name: str, nodes: int, trainer: Mapping[str, Any]) -> Json:
    """Return a TrainJob with one process on each node."""
    settings = {"numNodes": nodes, "numProcPerNode": 1, "resourcesPerNode": {"requests": REQUESTS, "limits": LIMITS}}
    return {
        "apiVersion": ENGINE.api_version,
        "kind": ENGINE.kind,
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime_name}, "trainer": {**settings, **trainer}},
    }


def sdk_command(script: Path, *words: str) -> list[str]:
    """Return a command that writes a script, as Kubeflow's SDK does, and runs the words."""
    text = f"read -r -d '' SCRIPT << EOM\n{script.read_text()}\nEOM\nprintf '%s' \"$SCRIPT\" > /tmp/{script.name}\n"
    return ["bash", "-c", f"{text}cd /tmp && exec {shlex.join(words)}"]


class PlatformTrainJobRun(TrainerRun):
    """The reference trainer in a TrainJob of the runtime ``ddp-torch-elastic``, with a pause in each step as stock."""

    def submit(self, least: int, most: int, *, apart: bool) -> None:
        """See :class:`~bench.drivers.cluster_runs.Run`. The range is that of the runtime."""
        del least, apart
        [_, _, _, train, _, _, *flags] = self.program
        flags = [train, "--task", "paced:PacedDigits", *flags]
        trainer = {"image": self.image, "command": sdk_command(PACED, "torchrun", "-m", "ddp_trainer", *flags)}
        job = train_job(self.name, "ddp-torch-elastic", most, trainer)
        self.api.create(collection(ENGINE.api_version, ENGINE.plural, self.backend.namespace), job)


@dataclass(slots=True)
class BaselineTrainJobRun(BaselineRun):
    """A plain DDP script in a TrainJob of Kubeflow's runtime, which writes the script as the SDK does."""

    @property
    def selector(self) -> str:
        """See :class:`~bench.drivers.cluster_runs.Run`."""
        return f"jobset.sigs.k8s.io/jobset-name={self.name}"

    def submit(self, least: int, most: int, *, apart: bool) -> None:
        """See :class:`~bench.drivers.cluster_runs.Run`."""
        del least, apart
        command = sdk_command(SCRIPT, "torchrun", f"/tmp/{SCRIPT.name}")
        env = [{"name": "DDP_CHECKPOINT_DIR", "value": "/tmp"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
        trainer = {"image": self.image, "command": command, "env": env}
        self.api.create(self._jobs(), train_job(self.name, STOCK_RUNTIME, most, trainer))

    def _jobs(self) -> str:
        return collection(ENGINE.api_version, ENGINE.plural, self.backend.namespace)

    def scale(self, nodes: int) -> None:
        """Delete the TrainJob, and create it again: its field ``trainer`` cannot change, also when it is suspended."""
        _delete(self.api, f"{self._jobs()}/{self.name}")
        deadline = time.monotonic() + WAIT_SECONDS
        while self.api.items(self._pods(), labelSelector=self.selector)[0]:
            if time.monotonic() > deadline:
                raise CannotMeasure(f"The pods of {self.name} did not end.")
            time.sleep(0.1)
        self.submit(nodes, nodes, apart=False)
