"""Jobs that fail on purpose, each in its own way, side by side on a real cluster: what each is, and what is said."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ddp_trainer.contract import Label
from kubectl_ddp import roots
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import workers
from kubectl_ddp.why.model import Cause
from tests.cluster.live_cluster import RESTRICTED, Namespace, until
from tests.cluster.staging import AT_ONCE, IDLE, TAINT, Change, Json, Stage, Staging
from tests.rendered import worker_template

# -- what is done to objects ------------------------------------------------------------------------------------------


def _pod(objects: list[Json]) -> Json:
    spec: Json = worker_template(objects)["spec"]
    return spec


def _left_to_another(objects: list[Json]) -> None:
    roots.root_of(objects)["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"


def _left_to_another_job(objects: list[Json]) -> None:
    roots.root_of(objects)["spec"]["managedBy"] = "example.com/nobody"


def _gated(objects: list[Json]) -> None:
    _pod(objects)["schedulingGates"] = [{"name": "example.com/wait"}]


def _asks_for(name: str, quantity: str) -> Change:
    def change(objects: list[Json]) -> None:
        resources = _pod(objects)["containers"][0]["resources"]
        resources["requests"][name] = resources["limits"][name] = quantity

    return change


def _second_is_mute(objects: list[Json]) -> None:
    """Its second node sleeps instead of coming to the rendezvous."""
    container = _pod(objects)["containers"][0]
    launcher = ["/bin/sh", "-c", 'case $HOSTNAME in *-1) exec sleep 3600;; esac; exec "$@"', "sh"]
    container["command"] = [*launcher, *container["command"]]


def _fails_before(objects: list[Json]) -> None:
    _pod(objects)["initContainers"] = [
        {
            "name": "fetch",
            "image": "localhost/busybox:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "echo no such bucket; exit 7"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": RESTRICTED,
        }
    ]


def _privileged(objects: list[Json]) -> None:
    _pod(objects)["containers"][0]["securityContext"] = {"privileged": True}


def _never_forgotten(objects: list[Json]) -> None:
    roots.root_of(objects)["metadata"]["finalizers"] = ["example.com/hold"]


def _without(what: str) -> Change:
    def change(objects: list[Json]) -> None:
        objects[:] = [item for item in objects if item["kind"] != what or item["metadata"]["name"].endswith("-code")]

    return change


# -- what is done to jobs ---------------------------------------------------------------------------------------------


def _suspend(staging: Staging, name: str) -> None:
    staging.backend.suspend(name, suspended=True)


def _delete(staging: Staging, name: str) -> None:
    staging.backend.delete(name)


def _cut_off(staging: Staging, name: str) -> None:
    """As a submission that died before its last request leaves it."""
    patch = {"metadata": {"annotations": {"ddp.dev/incomplete": "true"}}, "spec": {"runPolicy": {"suspend": True}}}
    staging.space.api.merge(staging.path_of(name), patch)


def _on_its_node(staging: Staging, name: str) -> Json:
    def bound() -> Json | None:
        pods = [pod for pod in staging.space.pods() if pod["metadata"]["labels"][Label.JOB] == name]
        return next((pod for pod in pods if pod["spec"].get("nodeName")), None)

    return until(f"a node for {name}", bound, seconds=30)  # type: ignore[return-value]  # it waits for one


def _runs_on_lost_node(staging: Staging, name: str) -> None:
    """The last that is heard of its node is that the pod runs."""
    pod = _on_its_node(staging, name)
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


def _make_room_for_another(staging: Staging, name: str) -> None:
    """A pod of higher priority wants the whole node."""
    _on_its_node(staging, name)
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


def _outdo(staging: Staging, name: str) -> None:
    """Another job of higher priority wants the whole quota, once this one has it."""

    def is_admitted() -> bool:
        return not roots.is_to_be_suspended(staging.backend.job(name).job)

    until(f"quota for {name}", is_admitted, seconds=30)
    words = ("--engine", "job", "--queue", "unfair", "--priority", f"{staging.tag}-high", *NOWHERE, "--cpu", "20m")
    small = ("--nnodes", "1", "--nproc", "1", "--memory", "64Mi", "--shm", "32Mi", "--image", staging.space.image)
    staging.space.ddp("submit", "--name", "outdoer", *words, *small, *IDLE).ok()


def _gone_from_the_cluster(staging: Staging, name: str) -> None:
    """Its workers' pods are taken away after somebody has asked once."""
    until("its failure", lambda: "Failed" in roots.conditions(staging.backend.job(name).job), seconds=90)
    staging.space.ddp("status", name).ok()
    for pod in workers(staging.backend.job(name).pods):
        path = staging.space.path("v1", "pods", pod["metadata"]["name"])
        with contextlib.suppress(DdpError):
            staging.space.api.delete(path, uid=pod["metadata"]["uid"])
    until("its pods gone", lambda: not workers(staging.backend.job(name).pods), seconds=60)


NOWHERE: Final = ("--node-selector", "stage=nowhere")
"""Pods that are admitted and never run."""

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
CUDA_OOM: Final = """
class OutOfMemoryError(RuntimeError):
    pass
OutOfMemoryError.__module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB")
"""

STAGES: Final[Mapping[str, Stage]] = {
    # Those that take longest come first.
    "node-lost": Stage(
        cause=Cause.NODE_LOST,
        code=11,
        says="-lost under pod node-lost-worker-0 is lost",
        words=("--node-selector", "stage={tag}-lost", "--toleration", f"{TAINT}-own", *IDLE),
        after=_runs_on_lost_node,
    ),
    "preempted": Stage(
        cause=Cause.PREEMPTED,
        code=11,
        says="had to make room for a pod of higher priority",
        words=("--node-selector", "stage={tag}-full", "--toleration", f"{TAINT}-own", "--priority", "{tag}-low", *IDLE),
        after=_make_room_for_another,
    ),
    "evicted": Stage(
        cause=Cause.EVICTED,
        code=11,
        says="exceeds the limit",
        words=("--mount", "emptydir=1Mi:/more"),
        script="import time\nopen('/more/x', 'wb').write(bytes(8 << 20))\ntime.sleep(3600)\n",
        runs=True,
    ),
    "hang": Stage(
        cause=Cause.HANG,
        code=14,
        says="did not enter",
        words=("--nproc", "2", "--memory", "2Gi", "--env", "DDP_HANG_FLOOR=2"),
        script=HANG,
        runs=True,
    ),
    "rendezvous": Stage(
        cause=Cause.RENDEZVOUS,
        says="pod rendezvous-worker-1 not",
        words=("--nnodes", "2", *IDLE),
        runs=True,
        change=_second_is_mute,
    ),
    "first-error": Stage(
        cause=Cause.ERROR,
        code=10,
        says="the 7th layer has no name",
        words=("--max-restarts", "0"),
        script=RAISE,
        runs=True,
    ),
    "pods-gone": Stage(
        cause=Cause.ERROR,
        code=10,
        says="kept in the job's annotation",
        words=("--max-restarts", "0"),
        script=RAISE,
        after=_gone_from_the_cluster,
        runs=True,
    ),
    "import": Stage(
        cause=Cause.ERROR,
        code=10,
        says="No module named 'flash_attention'",
        words=("--max-restarts", "0", "--engine", "job"),
        script="import flash_attention\n",
        runs=True,
    ),
    "killed": Stage(
        cause=Cause.ERROR,
        code=11,
        says="SIGKILL",
        words=("--max-restarts", "0", "--engine", "jobset"),
        script="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        runs=True,
    ),
    "cuda-oom": Stage(
        cause=Cause.GPU_OOM,
        code=10,
        says="Tried to allocate",
        words=("--max-restarts", "0"),
        script=CUDA_OOM,
        runs=True,
    ),
    "host-oom": Stage(
        cause=Cause.HOST_OOM,
        code=11,
        says="more --memory",
        words=("--max-restarts", "0", "--memory", "128Mi"),
        script="import time\nheld = bytearray(1 << 30)\ntime.sleep(3600)\n",
        runs=True,
    ),
    "finished": Stage(cause=Cause.FINISHED, code=0, says="has succeeded", words=("--command", "true"), runs=True),
    "deadline": Stage(
        cause=Cause.DEADLINE,
        code=11,
        says="DeadlineExceeded",
        words=("--engine", "job", "--deadline", "1s", *NOWHERE, *IDLE),
    ),
    "operator": Stage(
        cause=Cause.OPERATOR, says="left to the controller 'kueue.x-k8s.io/multikueue'", change=_left_to_another
    ),
    "operator-of-jobset": Stage(
        cause=Cause.OPERATOR,
        says="left to the controller 'example.com/nobody'",
        words=("--engine", "jobset", *IDLE),
        change=_left_to_another_job,
    ),
    "suspended": Stage(
        cause=Cause.SUSPENDED, code=12, says="resume suspended", after=_suspend, words=(*NOWHERE, *IDLE)
    ),
    "cut-off": Stage(
        cause=Cause.SUSPENDED, code=12, says="was cut off before its end", after=_cut_off, words=(*NOWHERE, *IDLE)
    ),
    "deleting": Stage(
        cause=Cause.DELETING,
        code=12,
        says="waits for example.com/hold",
        words=(*NOWHERE, *IDLE),
        change=_never_forgotten,
        after=_delete,
    ),
    "holder": Stage(
        cause=Cause.UNSCHEDULABLE, says="stage=nowhere", words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE)
    ),
    "queued": Stage(
        cause=Cause.QUEUED, says="holds quota: holder", words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE)
    ),
    "queued-second": Stage(
        cause=Cause.QUEUED,
        says="ahead of it: queued in namespace",
        words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE),
    ),
    "no-queue": Stage(
        cause=Cause.QUEUED,
        says="There is no queue 'nope'",
        words=("--engine", "jobset", "--queue", "nope", *NOWHERE, *IDLE),
    ),
    "too-large-for-queue": Stage(
        cause=Cause.QUEUED,
        says="more than the queue 'busy' can ever give",
        words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE),
        change=_asks_for("memory", "3Gi"),
    ),
    "outdone": Stage(
        cause=Cause.PREEMPTED,
        code=11,
        says="Kueue took its place away",
        words=("--engine", "job", "--queue", "unfair", "--priority", "{tag}-low", *NOWHERE, *IDLE),
        after=_outdo,
    ),
    "quota": Stage(cause=Cause.QUOTA, says="none-of-these", words=("--priority", "{tag}-capped", *IDLE)),
    "quota-of-jobset": Stage(
        cause=Cause.QUOTA, says="none-of-these", words=("--priority", "{tag}-capped", "--engine", "jobset", *IDLE)
    ),
    "admission": Stage(cause=Cause.ADMISSION, says="PodSecurity", change=_privileged),
    "gpus": Stage(
        cause=Cause.UNSCHEDULABLE,
        says="nvidia.com/gpu: asks 9",
        change=_asks_for("nvidia.com/gpu", "9"),
    ),
    "memory": Stage(cause=Cause.UNSCHEDULABLE, says="Insufficient memory", change=_asks_for("memory", "64Ti")),
    "selector": Stage(
        cause=Cause.UNSCHEDULABLE, says="no label stage=nowhere", words=("--engine", "trainjob", *NOWHERE, *IDLE)
    ),
    "taint": Stage(
        cause=Cause.UNSCHEDULABLE,
        says=f"taint {TAINT}:NoSchedule",
        words=("--node-selector", "stage={tag}-tainted", *IDLE),
    ),
    "gate": Stage(cause=Cause.UNSCHEDULABLE, says="the gate example.com/wait is closed", change=_gated),
    "scheduler": Stage(
        cause=Cause.UNSCHEDULABLE, says="The scheduler 'nobody' has not looked", words=("--scheduler", "nobody", *IDLE)
    ),
    "no-claim": Stage(
        cause=Cause.VOLUME, says="The claim 'nope' does not exist", words=("--mount", "pvc=nope:/data", *IDLE)
    ),
    "claim-unbound": Stage(
        cause=Cause.VOLUME,
        says="The claim 'never-bound' has no volume",
        words=("--checkpoint-claim", "never-bound", *IDLE),
    ),
    "image": Stage(
        cause=Cause.IMAGE, says="cannot be got", words=("--image", "registry.invalid/nobody/nothing:1", *IDLE)
    ),
    "image-name": Stage(cause=Cause.IMAGE, says="InvalidImageName", words=("--image", "example.com/UPPER:1", *IDLE)),
    "secret": Stage(
        cause=Cause.CONFIG, says="there is no Secret 'hub'", words=("--secret-env", "TOKEN=hub:token", *IDLE)
    ),
    "configmap": Stage(
        cause=Cause.CONFIG, says="there is no ConfigMap 'app'", words=("--mount", "configmap=app:/app", *IDLE)
    ),
    "init": Stage(cause=Cause.INIT, says="no such bucket", change=_fails_before),
    "start": Stage(cause=Cause.START, code=10, says="ddp-launch", words=("--image", "localhost/busybox:1", *IDLE)),
    "store": Stage(cause=Cause.STORE, says="no pod has the role of the store", runs=True, change=_without("Job")),
}


IN_ORDER: Final = ("holder", "queued", "queued-second")
"""Each of these has to be older than the next."""


@contextlib.contextmanager
def staged(space: Namespace) -> Iterator[Staging]:
    """All of them, side by side."""
    staging = Staging(space)
    is_over = threading.Event()
    pool = ThreadPoolExecutor(AT_ONCE)
    beats: list[Future[None]] = []
    try:
        staging.prepare()
        beats.append(pool.submit(staging.keep_alive, is_over))
        # Rendering takes over stdout, so that is done one by one.
        made = {
            name: (name, stage, staging.objects(name, stage)) for name, stage in STAGES.items() if staging.can(stage)
        }
        # Not all at once either: a hundred pods in one second are much for a small machine.
        starts = [pool.submit(staging.start, *made[name]) for name in made if name not in IN_ORDER]
        for name in IN_ORDER:
            if name not in made:
                continue
            staging.start(*made[name])
            second = int(time.time())
            until("the next second", lambda second=second: int(time.time()) > second)
        for start in starts:
            start.result()
        yield staging
    finally:
        is_over.set()
        pool.shutdown(cancel_futures=True)
        staging.clean()
        for beat in beats:
            beat.result()
