"""Changes that make a job fail: to its objects before submission, to the job and its cluster afterwards."""

from __future__ import annotations

import contextlib
from typing import Final

from ddp_trainer.common.constants import Label
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.status.termination_message import workers
from tests.cluster.live_cluster import RESTRICTED, until
from tests.cluster.staging import IDLE, Change, Json, Staging
from tests.support.rendered import store_job, worker_template

# -- changes to objects ----------------------------------------------------------------------------------------------


def pod_of(objects: list[Json]) -> Json:
    spec: Json = worker_template(objects)["spec"]
    return spec


def left_to_another(objects: list[Json]) -> None:
    job_kinds.root_of(objects)["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"


def left_to_another_job(objects: list[Json]) -> None:
    job_kinds.root_of(objects)["spec"]["managedBy"] = "example.com/other"


def gated(objects: list[Json]) -> None:
    pod_of(objects)["schedulingGates"] = [{"name": "example.com/wait"}]


def asks_for(name: str, quantity: str) -> Change:
    def change(objects: list[Json]) -> None:
        resources = pod_of(objects)["containers"][0]["resources"]
        resources["requests"][name] = resources["limits"][name] = quantity

    return change


def second_is_mute(objects: list[Json]) -> None:
    """Let the second node sleep instead of joining the rendezvous."""
    container = pod_of(objects)["containers"][0]
    launcher = ["/bin/sh", "-c", 'case $HOSTNAME in *-1) exec sleep 3600;; esac; exec "$@"', "sh"]
    container["command"] = [*launcher, *container["command"]]


def fails_before(objects: list[Json]) -> None:
    pod_of(objects)["initContainers"] = [
        {
            "name": "fetch",
            "image": "localhost/busybox:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "echo no such bucket; exit 7"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": RESTRICTED,
        }
    ]


def privileged(objects: list[Json]) -> None:
    pod_of(objects)["containers"][0]["securityContext"] = {"privileged": True}


def store_is_privileged(objects: list[Json]) -> None:
    """Let Pod Security reject the pod of the store."""
    store_job(objects)["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}


def never_forgotten(objects: list[Json]) -> None:
    job_kinds.root_of(objects)["metadata"]["finalizers"] = ["example.com/hold"]


def without(what: str) -> Change:
    def change(objects: list[Json]) -> None:
        objects[:] = [item for item in objects if item["kind"] != what or item["metadata"]["name"].endswith("-code")]

    return change


# -- changes to jobs -------------------------------------------------------------------------------------------------


def suspend(staging: Staging, name: str) -> None:
    staging.backend.suspend(name, suspended=True)


def delete(staging: Staging, name: str) -> None:
    staging.backend.delete(name)


def cut_off(staging: Staging, name: str) -> None:
    """Leave the job incomplete, like a submission that was killed before its last request."""
    patch = {"metadata": {"annotations": {"ddp.dev/incomplete": "true"}}, "spec": {"runPolicy": {"suspend": True}}}
    staging.space.api.merge(staging.path_of(name), patch)


def on_its_node(staging: Staging, name: str) -> Json:
    def bound() -> Json | None:
        pods = [pod for pod in staging.space.pods() if pod["metadata"]["labels"][Label.JOB] == name]
        return next((pod for pod in pods if pod["spec"].get("nodeName")), None)

    return until(f"a node for {name}", bound)  # type: ignore[return-value]  # it waits for one


def runs_on_lost_node(staging: Staging, name: str) -> None:
    """Report the pod as running, then stop the heartbeats of its node."""
    pod = on_its_node(staging, name)
    container = pod["spec"]["containers"][0]
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}},
            }
        ],
    }
    staging.space.api.merge(staging.space.path("v1", "pods", pod["metadata"]["name"]) + "/status", {"status": status})
    staging.living.discard("lost")


def make_room_for_another(staging: Staging, name: str) -> None:
    """Create a pod of higher priority that needs the whole node."""
    on_its_node(staging, name)
    container = {
        "name": "c",
        "image": "localhost/pause:1",
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "25m"}},
    }
    spec = {
        "priorityClassName": f"{staging.tag}-high",
        "nodeSelector": {"stage": f"{staging.tag}-full"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
    }
    staging.space.api.create(staging.space.path("v1", "pods"), {"metadata": {"name": "important"}, "spec": spec})


def outdo(staging: Staging, name: str) -> None:
    """Submit a job of higher priority that needs the whole quota, once this job is admitted."""

    def is_admitted() -> bool:
        return not job_kinds.is_suspend_requested(staging.backend.job(name).job)

    until(f"quota for {name}", is_admitted)
    words = ("--engine", "job", "--queue", "unfair", "--priority", f"{staging.tag}-high", *NOWHERE, "--cpu", "20m")
    small = ("--nnodes", "1", "--nproc", "1", "--memory", "64Mi", "--shm", "32Mi", "--image", staging.space.image)
    staging.space.ddp("submit", "--name", "outdoer", *words, *small, *IDLE).ok()


def gone_from_the_cluster(staging: Staging, name: str) -> None:
    """Delete the workers' pods after one ``status`` of the failed job."""
    until("its failure", lambda: "Failed" in job_kinds.conditions(staging.backend.job(name).job), seconds=90)
    staging.space.ddp("status", name).ok()
    for pod in workers(staging.backend.job(name).pods):
        path = staging.space.path("v1", "pods", pod["metadata"]["name"])
        with contextlib.suppress(DdpError):
            staging.space.api.delete(path, uid=pod["metadata"]["uid"])
    until("its pods gone", lambda: not workers(staging.backend.job(name).pods))


NOWHERE: Final = ("--node-selector", "stage=nowhere")
"""Node selector of pods that are admitted but never run."""

RAISE: Final = "raise ValueError('the 7th layer has no name')\n"
HANG: Final = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(60):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(torch.ones(1))
"""
EARLY_EXIT: Final = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(0)
while True:
    dist.all_reduce(torch.ones(1))
"""
KILL: Final = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
HOST_OOM: Final = "import time\nheld = b'x' * (1 << 30)\ntime.sleep(3600)\n"
CUDA_OOM: Final = """
class OutOfMemoryError(RuntimeError):
    pass
OutOfMemoryError.__module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB")
"""
