"""Jobs on a cluster whose steps are seen in the logs of their pods: ours, and a stock elastic PyTorchJob.

A line's time is the one at which the container runtime took it, so how often the logs are read decides nothing. What
counts is the first step of a worker group that began after a fault; those that ended with it do not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.drivers.jobs import ROOT
from bench.drivers.step_recorder import Seen, events_of
from bench.harness import CannotMeasure
from ddp_trainer.common.constants import GroupState, Label, Role
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import epoch, log_timestamp
from kubectl_ddp.status.job_state import group_state
from kubectl_ddp.status.metrics_parser import parse

Json = dict[str, Any]

POLL_SECONDS: Final = 0.3
IMAGE: Final = "DDP_TEST_IMAGE"
"""Variable that names the trainer image that the cluster's nodes can start."""
SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "elastic_ddp.py"
RESTRICTED: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
MACHINE: Final = "kubernetes.io/hostname"
CPU: Final = "900m"
"""CPU request of each node. Two on two cores leave some capacity for the cluster itself."""
CPU_BESIDE_SPARES: Final = "250m"
"""CPU request of each node of a job with spares, which has imported before it must be fast."""


@dataclass(slots=True)
class Run(ABC):
    """A job in a namespace."""

    backend: ClusterBackend
    api: Api
    image: str
    name: str
    lost: set[str] = field(default_factory=set)
    """Lost machines, whose pods do not answer."""
    spares: int = 0
    """Spare pods; of ours only."""

    @abstractmethod
    def submit(self, least: int, most: int, *, apart: bool) -> None:
        """Create the job with ``most`` nodes; ``apart``: spread evenly over the machines."""

    @abstractmethod
    def scale(self, nodes: int) -> None:
        """Change the number of its nodes."""

    @abstractmethod
    def worker(self, pod: Json) -> int:
        """Process id of a pod's worker, as inside of it."""

    @abstractmethod
    def read(self, lines: Iterator[tuple[float, Json]]) -> Iterator[Seen]:
        """The steps among the events of one pod."""

    @property
    @abstractmethod
    def selector(self) -> str:
        """Labels of its worker pods."""

    # ------------------------------------------------------------------------------------------------------------ pods

    def pods(self) -> list[Json]:
        """Its worker pods that have not ended and are not being deleted, by name."""
        found, _ = self.api.items(self._pods(), labelSelector=self.selector)
        return active_pods(found)

    def delete_pod(self, pod: Json) -> float:
        """Delete a pod like ``kubectl delete pod``, and return the Unix time."""
        begun = time.time()
        self.api.delete(f"{self._pods()}/{pod['metadata']['name']}", uid=pod["metadata"]["uid"])
        return begun

    def latest_container_start(self) -> float:
        """Return the start time of the container of the latest pod, in whole seconds."""
        states = [pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for pod in self.pods()]
        return max(epoch(state) or 0.0 for state in states)

    def _pods(self) -> str:
        return collection("v1", "pods", self.backend.namespace)

    # ----------------------------------------------------------------------------------------------------------- steps

    def steps(self, since: float) -> list[Seen]:
        """Return every step reported since a moment, by the reachable pods."""
        found: list[Seen] = []
        for pod in self.pods():
            if pod["spec"].get("nodeName") not in self.lost and pod["status"]["phase"] == "Running":
                with contextlib.suppress(DdpError):
                    found += self.read(self._events(pod, since))
        return sorted((seen for seen in found if seen.time > since), key=lambda seen: seen.time)

    def _events(self, pod: Json, since: float) -> Iterator[tuple[float, Json]]:
        return events_of(self.backend.logs(pod, timestamps=True, since=log_timestamp(int((since - 1) * 1e9))))

    def first(self, fault: float, seconds: float, *, world: int | None = None) -> float | None:
        """Return when a group formed after a fault, of size ``world`` if given, committed its first step."""
        return self._until(
            seconds,
            lambda: next(
                (seen.time for seen in self.steps(fault) if seen.began > fault and world in {None, seen.world}), None
            ),
        )

    def train(self, world: int, seconds: float, *, lasting: float = 0.0) -> None:
        """Wait until a group of this size trains, and has for some seconds. Raises CannotMeasure."""
        now = time.time()

        def is_training() -> bool | None:
            recent = [seen for seen in self.steps(max(now - 1, time.time() - 2)) if seen.world == world]
            return bool(recent) or None

        if self._until(seconds, is_training) is None:
            raise CannotMeasure(f"{self.name} did not train in a world of {world} within {seconds:g} s.")
        time.sleep(lasting)

    def longest_pause(self, begin: float, end: float) -> float:
        """The longest time between two steps in a span."""
        times = [begin, *(seen.time for seen in self.steps(begin) if seen.time < end), end]
        return max(later - sooner for sooner, later in itertools.pairwise(times))

    def _until(self, seconds: float, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (it := found()) is not None:
                return it
            time.sleep(POLL_SECONDS)
        return None


class TrainerRun(Run):
    """The reference trainer, submitted by the command line."""

    engine = "pytorchjob"
    cpu = ""
    """CPU of each node; empty for one that lets two nodes fit, or three beside spares."""
    program: tuple[str, ...] = (
        *("--module", "ddp_trainer", "--", "train", "--task", "digits", "--epochs", "1000000"),
        *("--checkpoint-seconds", "1", "--log-json", "--log-steps", "1"),
    )

    @property
    def selector(self) -> str:
        """See :class:`Run`."""
        return f"{Label.JOB}={self.name},{Label.ROLE}={Role.WORKER}"

    def submit(self, least: int, most: int, *, apart: bool) -> None:
        """See :class:`Run`."""
        where = ("--topology", f"spread={MACHINE}:required") if apart else ()
        cpu = self.cpu or (CPU_BESIDE_SPARES if self.spares else CPU)
        self.ddp(
            *("submit", "--name", self.name, "--image", self.image, "--engine", self.engine, *where),
            *("--nnodes", f"{least}:{most}", "--nproc", "1", "--cpu", cpu, "--memory", "1Gi", "--shm", "64Mi"),
            *("--spares", str(self.spares), "--max-restarts", "1000", *self.program),
        )

    def scale(self, nodes: int) -> None:
        """See :class:`Run`."""
        self.backend.scale(self.name, nodes)

    def delete(self) -> None:
        """Delete it."""
        self.backend.delete(self.name)

    def ddp(self, command: str, *words: str) -> None:
        """``kubectl-ddp COMMAND`` in its namespace. Raises CannotMeasure."""
        done = subprocess.run(
            [sys.executable, "-m", "kubectl_ddp", command, "-n", self.backend.namespace, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotMeasure(f"kubectl-ddp {command} ended with {done.returncode}: {done.stderr.strip()}")

    def worker(self, pod: Json) -> int:
        """See :class:`Run`."""
        return int(parse(self.backend.metrics(pod)).all(Metric.RANK_PID)[0][1])

    def pods_in(self, state: GroupState) -> list[Json]:
        """Its pods whose worker group is in this state."""
        found = []
        for pod in self.pods():
            with contextlib.suppress(DdpError):
                if group_state(parse(self.backend.metrics(pod))) == state:
                    found.append(pod)
        return found

    def wait_for_spares(self, seconds: float) -> None:
        """Wait until all its spares have a place to wait. Raises CannotMeasure."""
        if self._until(seconds, lambda: len(self.pods_in(GroupState.SPARE)) == self.spares or None) is None:
            raise CannotMeasure(f"{self.name} did not have {self.spares} ready spares within {seconds:g} s.")

    def store(self) -> Json:
        """The pod of its store."""
        selector = f"{Label.JOB}={self.name},{Label.ROLE}={Role.STORE}"
        found, _ = self.api.items(self._pods(), labelSelector=selector)
        return active_pods(found)[0]

    def read(self, lines: Iterator[tuple[float, Json]]) -> Iterator[Seen]:
        """See :class:`Run`."""
        world, began = 0, 0.0
        for moment, event in lines:
            if event["event"] == "started":
                world, began = int(event["world_size"]), moment
            elif event["event"] == "step":
                world = world or self._world()
                yield Seen(moment, world, began, int(event["step"]))

    def _world(self) -> int:
        """Return the size of a group that formed before the lines that were read. A spare does not report it."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") not in self.lost:
                with contextlib.suppress(DdpError):
                    if world := int(parse(self.backend.metrics(pod)).value(Metric.WORLD_SIZE) or 0):
                        return world
        return 0


class IndexedJobRun(TrainerRun):
    """The same as an Indexed Job, which needs no operator."""

    engine = "job"


class JobSetRun(TrainerRun):
    """The same as a JobSet."""

    engine = "jobset"


class TrainJobRun(TrainerRun):
    """The same as a TrainJob."""

    engine = "trainjob"


class _OfScript(Run):
    """A job whose ranks run the plain DDP script."""

    def worker(self, pod: Json) -> int:
        """See :class:`Run`."""
        events = [event for _, event in self._events(pod, time.time() - 3)]
        if not events:
            raise CannotMeasure(f"Pod {pod['metadata']['name']} of {self.name} does not step.")
        return int(events[-1]["pid"])

    def read(self, lines: Iterator[tuple[float, Json]]) -> Iterator[Seen]:
        """See :class:`Run`."""
        for moment, event in lines:
            yield Seen(moment, int(event["world"]), float(event["began"]), int(event["step"]))


class ScriptRun(_OfScript, TrainerRun):
    """A plain DDP script, submitted by the command line: its processes end with their group."""

    program = (str(SCRIPT),)


class IndexedJobScriptRun(ScriptRun):
    """The same as an Indexed Job."""

    engine = "job"


class JobSetScriptRun(ScriptRun):
    """The same as a JobSet."""

    engine = "jobset"


class TrainJobScriptRun(ScriptRun):
    """The same as a TrainJob."""

    engine = "trainjob"


class BaselineRun(_OfScript):
    """A plain DDP script under torchrun, as an elastic PyTorchJob of Kubeflow's operator."""

    cpu = CPU

    @property
    def selector(self) -> str:
        """See :class:`Run`."""
        return f"training.kubeflow.org/job-name={self.name}"

    def submit(self, least: int, most: int, *, apart: bool) -> None:
        """See :class:`Run`."""
        space = self.backend.namespace
        script = {"metadata": {"name": self.name}, "data": {SCRIPT.name: SCRIPT.read_text()}}
        self.api.create(collection("v1", "configmaps", space), script)
        replicas = {"replicas": most, "restartPolicy": "OnFailure", "template": {"spec": self._pod(apart=apart)}}
        spec = {
            "nprocPerNode": "1",
            "elasticPolicy": {"minReplicas": least, "maxReplicas": most, "rdzvBackend": "c10d", "maxRestarts": 100},
            "pytorchReplicaSpecs": {"Worker": replicas},
        }
        root = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": self.name}, "spec": spec}
        self.api.create(self._jobs(), root)

    def _jobs(self) -> str:
        return collection("kubeflow.org/v1", "pytorchjobs", self.backend.namespace)

    def _pod(self, *, apart: bool) -> Json:
        container = {
            "name": "pytorch",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-m", "torch.distributed.run", f"/code/{SCRIPT.name}"],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "ports": [{"name": "pytorchjob-port", "containerPort": 23456}],
            "resources": {"limits": {"cpu": self.cpu, "memory": "1Gi"}},
            "securityContext": RESTRICTED,
            "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "kept", "mountPath": "/kept"}],
        }
        volumes = [{"name": "code", "configMap": {"name": self.name}}, {"name": "kept", "emptyDir": {}}]
        constraint = {
            "maxSkew": 1,
            "topologyKey": MACHINE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": self.name}},
        }
        constraints = {"topologySpreadConstraints": [constraint]} if apart else {}
        return {"containers": [container], "volumes": volumes, **constraints}

    def scale(self, nodes: int) -> None:
        """See :class:`Run`."""
        patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes}}}}
        self.api.merge(f"{self._jobs()}/{self.name}", patch)


def active_pods(pods: Iterable[Json]) -> list[Json]:
    """The pods that have not ended and are not being deleted, by name.

    A Job keeps the pod that failed beside the one that replaces it, and both have the same index.
    """
    found = [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in {"Failed", "Succeeded"}
    ]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


@contextlib.contextmanager
def namespace(api: Api) -> Iterator[str]:
    """A namespace for one measurement."""
    name = f"ddp-test-bench-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        yield name
    finally:
        api.delete(f"/api/v1/namespaces/{name}", uid=made["metadata"]["uid"])


def connected_api() -> Api:
    """The API server of this environment. Raises CannotMeasure if it does not answer."""
    try:
        api = Api(connect())
        api.get("/version")
    except DdpError as error:
        raise CannotMeasure(f"no cluster is reachable: {error}") from error
    return api


def image() -> str:
    """The trainer image that the cluster's nodes can start. Raises CannotMeasure."""
    if IMAGE not in os.environ:
        raise CannotMeasure(f"{IMAGE} names no trainer image that the cluster can start.")
    return os.environ[IMAGE]
