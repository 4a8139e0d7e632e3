"""An API server with a DDPJob and controllers for it, as tests of both sides use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddp_controller.reconciler import Reconciler
from ddp_controller.world import World
from kubectl_ddp.backends.cluster.http.api import Api, Response
from kubectl_ddp.backends.cluster.http.connection import Connection
from kubectl_ddp.kube.objects import Object
from tests.support.api_server import GROUPS as OF_JOBS
from tests.support.api_server import ApiServer
from tests.support.refused_jobs import ddpjob

GROUPS = {
    **OF_JOBS,
    "/api/v1": {**OF_JOBS["/api/v1"], "Node": "nodes"},
    "/apis/ddp.dev/v1alpha1": {"DDPJob": "ddpjobs"},
    "/apis/jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
    "/apis/trainer.kubeflow.org/v1alpha1": {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"},
    "/apis/scheduling.volcano.sh/v1beta1": {"PodGroup": "podgroups"},
    "/apis/policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}
SPACE = "/namespaces/team"
DDPJOB = f"/apis/ddp.dev/v1alpha1{SPACE}/ddpjobs/digits"
ROOT = f"/apis/batch/v1{SPACE}/jobs/digits"
PLAIN: dict[str, Any] = {"engine": "job", "nnodes": "1:3", "nproc": 1, "image": "registry.example.com/train:1"}


class Killed(BaseException):
    """The process died."""


@dataclass
class Life:
    """Number of requests before the process dies, and whether it dies before or after it has sent the last one."""

    left: int = 10**6
    loses_answer: bool = False


class Mortal(Api):
    """Connection of a process that dies. Copies of it share its life."""

    def __init__(self, connection: Connection, life: Life) -> None:
        super().__init__(connection, sleep=lambda _: None)
        self.life = life

    def _send(self, method: str, path: str, query: Any, **more: Any) -> Response:
        self.life.left -= 1
        if self.life.left < 0 and not self.life.loses_answer:
            raise Killed
        answer = super()._send(method, path, query, **more)
        if self.life.left < 0:
            raise Killed
        return answer


class Cluster:
    """An API server with a DDPJob, and controllers for it."""

    def __init__(self, server: ApiServer, connection: Connection) -> None:
        self.server = server
        self.life = Life()
        self.api = Mortal(connection, self.life)
        self.watching = Api(connection, sleep=lambda _: None)
        self.now = 1_800_000_000.0
        self.logged: list[dict[str, Any]] = []

    def create(self, changes: dict[str, Any], **metadata: Any) -> None:
        item = ddpjob(PLAIN | changes)
        attributes = {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", **item["metadata"], **metadata}
        self.server.put(DDPJOB, {**item, "metadata": attributes})

    def change(self, **spec: Any) -> None:
        old = self.server.objects[DDPJOB]
        metadata = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.server.put(DDPJOB, {**old, "metadata": metadata, "spec": {**old["spec"], **spec}})

    def reconciler(self, api: Api | None = None) -> Reconciler:
        return Reconciler(api or self.api, log=self.log, clock=lambda: self.now)

    def world(self) -> World:
        """Return the present objects, as a controller sees them."""
        world = World(self.watching, taints={}, has_ddpjobs=True)
        world.start()
        world.stop()
        world.jobs()
        return world

    def log(self, event: str, **facts: Any) -> None:
        self.logged.append({"event": event, **facts})

    def settle(self, reconciler: Reconciler | None = None) -> Object:
        """Reconcile until a round writes nothing, and return the DDPJob."""
        own = reconciler or self.reconciler()
        self.server.collect_garbage()
        for _ in range(6):
            done = len(self.server.requests)
            world = self.world()
            own.reconcile_all(world.ddpjobs(), world.runs())
            if all(request.method == "GET" for request in self.server.requests[done:]):
                return self.server.objects.get(DDPJOB, {})
        raise AssertionError("The sixth round still writes.")

    def made(self) -> dict[str, Object]:
        """All objects but DDPJob and events, by kind and name; Secrets by kind."""
        return {
            item["kind"] if item["kind"] == "Secret" else f"{item['kind']}/{item['metadata']['name']}": item
            for path, item in self.server.objects.items()
            if item.get("kind") not in {None, "DDPJob", "Event"}
        }

    def events(self) -> list[tuple[str, str]]:
        found = [item for item in self.server.objects.values() if item.get("kind") == "Event"]
        return [(entry["reason"], entry["message"]) for entry in found]
