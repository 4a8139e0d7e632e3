"""Stages of jobs that fail on purpose: their objects, and the cluster-wide objects that they need.

The command line renders each job, and the stage changes its objects. Objects that the failure does not need are left
out, and pods request few resources, so that all jobs fit on a small cluster. Names of cluster-wide objects (nodes,
queues, priority classes) contain the namespace's name; a taint or a selector keeps other pods away.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from click.testing import CliRunner

from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.cli.group import root
from kubectl_ddp.engines import DEFAULT_ENGINE, ENGINES
from kubectl_ddp.errors import DdpError, Unreachable
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.why.model import Cause
from tests.cluster.live_cluster import Json, Namespace, Result, until
from tests.support.rendered import store_job, worker_template

Change = Callable[[list[Json]], None]

SMALL: Final = ("--nnodes", "1", "--nproc", "1", "--cpu", "1", "--memory", "512Mi", "--shm", "32Mi")
HALF: Final = ("--cpu", "500m")
"""CPU of each pod of a two-pod job: with one core each, two jobs could block each other."""
IDLE: Final = ("--command", "sleep 3600")
KUEUE: Final = "kueue.x-k8s.io/v1beta2"
TAINT: Final = "why.example.com/staged"
AT_ONCE: Final = 12
HEARTBEAT_SECONDS: Final = 4.0
NOT_NEEDED: Final = frozenset({"PodMonitor", "NetworkPolicy"})
NO_STORE: Final = NOT_NEEDED | {"Service"}


@dataclass(frozen=True)
class Stage:
    """One job that fails, and the expected diagnosis."""

    cause: Cause
    code: int
    """Exit code of ``why``."""
    says: str
    """Text that the first finding contains: in its sentence, evidence or help."""
    words: tuple[str, ...] = IDLE
    """Flags of the job, besides :data:`SMALL`."""
    script: str = ""
    """Script of the job, instead of :data:`IDLE`."""
    _: KW_ONLY
    change: Change = lambda _: None
    """Changes the objects before submission."""
    after: Callable[[Staging, str], None] = lambda *_: None
    """Called after submission."""
    fault: Callable[[Staging, str], None] | None = None
    """Called once the worker group has formed."""
    runs: bool = False
    """True if the pods must run, and so need a store, although the stage has no script."""
    is_local: bool = False
    """True if the stage must not run on a cluster, because it fills a disk of the node."""
    is_honest: bool = False
    """True if the job is only slow: ``why`` must never report a hang."""
    here: str = ""
    """Shell commands that run before the job on this machine, in a private mount namespace."""


@dataclass
class Staging:
    """The namespace, and the cluster-wide objects created for it."""

    space: Namespace
    outside: list[str] = field(default_factory=list)
    """Paths of cluster-wide objects to delete."""
    began: dict[str, float] = field(default_factory=dict)
    """Stage → Unix time at which its failure began, if that is known before a pod runs."""
    closed: set[str] = field(default_factory=set)
    """Real nodes that are cordoned."""
    living: set[str] = field(default_factory=lambda: {"tainted", "full", "lost"})
    """Simulated nodes that send heartbeats."""

    @property
    def tag(self) -> str:
        return self.space.name

    @functools.cached_property
    def served(self) -> frozenset[str]:
        """Engines and queues that the cluster serves."""
        wanted = {root.name: (root.api_version, root.plural) for root in ENGINES.values()}
        found = set()
        for name, (version, plural) in {**wanted, "queues": (KUEUE, "localqueues")}.items():
            with contextlib.suppress(NotServed):
                self.space.api.get(self.space.path(version, plural))
                found.add(name)
        return frozenset(found)

    def can(self, stage: Stage) -> bool:
        """Return True if the cluster serves all that a stage needs."""
        words = stage.words
        engine = words[words.index("--engine") + 1] if "--engine" in words else DEFAULT_ENGINE
        return not stage.is_local and engine in self.served and ("--queue" not in words or "queues" in self.served)

    def make(self, path: str, body: Json) -> Json:
        """Create a cluster-wide object that :meth:`clean` deletes."""
        made = self.space.api.create(path, body)
        self.outside.append(f"{path}/{made['metadata']['name']}")
        return made

    def prepare(self) -> None:
        """Create the queues, priority classes and nodes that the stages need."""
        for name, value in (("low", 10), ("high", 1000), ("capped", 5)):
            body = {"metadata": {"name": f"{self.tag}-{name}"}, "value": value}
            self.make("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        if "queues" in self.served:
            self._queues()
        self._lacks()
        self.node("tainted", taint=True)
        self.node("full")
        self.node("lost")

    def _queues(self) -> None:
        flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": self.tag}}
        self.make(f"/apis/{KUEUE}/resourceflavors", flavor)
        for queue in ("busy", "unfair"):
            self._queue(queue)

    def _lacks(self) -> None:
        """Create a quota of zero pods, and a claim that is never bound."""
        self.space.api.create(
            self.space.path("v1", "resourcequotas"),
            {
                "metadata": {"name": "none-of-these"},
                "spec": {
                    "hard": {"pods": "0"},
                    "scopeSelector": {
                        "matchExpressions": [
                            {"scopeName": "PriorityClass", "operator": "In", "values": [f"{self.tag}-capped"]}
                        ]
                    },
                },
            },
        )
        self.space.api.create(
            self.space.path("v1", "persistentvolumeclaims"),
            {
                "metadata": {"name": "never-bound"},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        )

    def _queue(self, queue: str) -> None:
        name = f"{self.tag}-{queue}"
        quota = [{"name": "cpu", "nominalQuota": "30m"}, {"name": "memory", "nominalQuota": "2Gi"}]
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {"coveredResources": ["cpu", "memory"], "flavors": [{"name": self.tag, "resources": quota}]}
            ],
        }
        cluster_queue = {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
        self.make(f"/apis/{KUEUE}/clusterqueues", cluster_queue)
        local = {"metadata": {"name": queue}, "spec": {"clusterQueue": name}}
        self.space.api.create(
            self.space.path(KUEUE, "localqueues"), {"apiVersion": KUEUE, "kind": "LocalQueue", **local}
        )

    def node(self, name: str, *, taint: bool = False) -> None:
        """Create a node without a machine. Without heartbeats, the cluster marks it as lost."""
        taints = [{"key": TAINT if taint else f"{TAINT}-own", "effect": "NoSchedule"}]
        labels = {"kubernetes.io/hostname": f"{self.tag}-{name}", "stage": f"{self.tag}-{name}"}
        path = "/api/v1/nodes"
        self.make(path, {"metadata": {"name": f"{self.tag}-{name}", "labels": labels}, "spec": {"taints": taints}})
        self._send_heartbeats(name)

    def keep_alive(self, is_over: threading.Event) -> None:
        """Send the heartbeats of the living nodes."""
        while not is_over.wait(HEARTBEAT_SECONDS):
            for node in tuple(self.living):
                self._send_heartbeats(node)

    def _send_heartbeats(self, node: str) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": moment}
        room = {"cpu": "30m", "memory": "1Gi", "pods": "10"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        self.space.api.merge(f"/api/v1/nodes/{self.tag}-{node}/status", {"status": status})

    def objects(self, name: str, stage: Stage) -> list[Json]:
        """Return the objects of the job."""
        words = [word.replace("{tag}", self.tag) for word in (*SMALL, *stage.words)]
        if stage.script:
            path = self.space.home / f"{name}.py"
            path.write_text(stage.script)
            words = [str(path), *(word for word in words if word not in IDLE)]
        image = () if "--image" in words else ("--image", self.space.image)
        objects = self.render_objects("--name", name, *image, *words)
        must_run = stage.runs or stage.script
        dropped = NOT_NEEDED if must_run else NO_STORE
        objects = [item for item in objects if item["kind"] not in dropped]
        _make_thrifty(objects)
        if not must_run:
            objects.remove(store_job(objects))
        stage.change(objects)
        return objects

    def start(self, name: str, stage: Stage, objects: list[Json]) -> None:
        """Submit the job, and inject its failure."""

        def is_taken() -> bool:
            with contextlib.suppress(Unreachable):  # a webhook of an operator that is restarting
                self.backend.submit(objects)
                return True
            return False

        until(f"the submission of {name}", is_taken)
        self.began[name] = time.time()
        stage.after(self, name)
        if stage.fault is not None:
            until(f"the group of {name}", lambda: self._has_group(name))
            self.began[name] = time.time()
            stage.fault(self, name)

    def _has_group(self, name: str) -> bool:
        """Return True once the worker group has formed: a fault of an earlier pod would be another failure."""
        return bool(observe(self.backend, self.backend.job(name, events=False)).world_size)

    def cordon(self, node: str, *, closed: bool) -> None:
        """Cordon or uncordon a real node."""
        (self.closed.add if closed else self.closed.discard)(node)
        self.space.api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": closed or None}})

    @property
    def backend(self) -> ClusterBackend:
        return ClusterBackend(Access(namespace=self.space.name), notice=lambda _: None)

    def ddp(self, *words: str) -> Result:
        """Run a command of ``kubectl ddp`` in the namespace."""
        return self.space.ddp(*words)

    def render_objects(self, *words: str) -> list[Json]:
        """Return the objects that ``kubectl ddp render`` prints."""
        done = CliRunner().invoke(root(), ["render", "-n", self.space.name, *words, "-o", "json"])
        assert done.exit_code == 0, (words, done.output, done.exception)
        items: list[Json] = json.loads(done.stdout)["items"]
        return items

    def path_of(self, name: str) -> str:
        """Path of a job's root object."""
        kind = job_kinds.engine_of(self.backend.job(name).job)
        return self.space.path(kind.api_version, kind.plural, name)

    def clean(self) -> None:
        """Delete the cluster-wide objects, and the pods on nodes without a kubelet."""
        api = self.space.api
        for node in tuple(self.closed):
            self.cordon(node, closed=False)
        with contextlib.suppress(DdpError):
            api.merge(self.path_of("deleting"), {"metadata": {"finalizers": []}})
        for pod in api.items(self.space.path("v1", "pods"))[0]:
            if str(pod["spec"].get("nodeName", "")).startswith(self.tag):
                with contextlib.suppress(DdpError):
                    path = self.space.path("v1", "pods", pod["metadata"]["name"])
                    api._send("DELETE", path, {}, body={"gracePeriodSeconds": 0})
        for path in reversed(self.outside):
            with contextlib.suppress(DdpError):
                api._send("DELETE", path, {}, body={})


def _make_thrifty(objects: list[Json]) -> None:
    """Set small requests and a larger CPU limit."""
    for template, cpu in ((worker_template(objects), "20m"), (store_job(objects)["spec"]["template"], "10m")):
        resources = template["spec"]["containers"][0]["resources"]
        resources["requests"] |= {"cpu": cpu, "memory": "64Mi"}
        resources["limits"] |= {"cpu": "2"}
