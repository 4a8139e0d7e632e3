"""Jobs that fail on purpose, run in parallel on a real cluster, and the diagnosis expected of each."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from kubectl_ddp.why.model import Cause
from tests.cluster import staged_changes as to
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.staged_changes import CUDA_OOM, EARLY_EXIT, HANG, HOST_OOM, KILL, NOWHERE, RAISE
from tests.cluster.staging import AT_ONCE, HALF, IDLE, TAINT, Change, Stage, Staging


def _failing(says: str, script: str, *words: str, cause: Cause = Cause.ERROR, code: int = 10) -> Stage:
    """Stage of a script that fails without a restart."""
    return Stage(cause, code, says, ("--max-restarts", "0", *words), script)


def _waiting(cause: Cause, says: str, *words: str, change: Change = lambda _: None) -> Stage:
    """Stage of a job whose pods do not run."""
    return Stage(cause, 13, says, (*words, *IDLE), change=change)


def _queued(cause: Cause, says: str, queue: str = "busy", *, change: Change = lambda _: None) -> Stage:
    """Stage of a Job in a queue whose pods fit no node."""
    return _waiting(cause, says, "--engine", "job", "--queue", queue, *NOWHERE, change=change)


STAGES: Final[Mapping[str, Stage]] = {
    # The slowest come first.
    "node-lost": Stage(
        Cause.NODE_LOST,
        11,
        "-lost under pod node-lost-worker-0 is lost",
        ("--node-selector", "stage={tag}-lost", "--toleration", f"{TAINT}-own", *IDLE),
        after=to.runs_on_lost_node,
    ),
    "preempted": Stage(
        Cause.PREEMPTED,
        11,
        "had to make room for a pod of higher priority",
        ("--node-selector", "stage={tag}-full", "--toleration", f"{TAINT}-own", "--priority", "{tag}-low", *IDLE),
        after=to.make_room_for_another,
    ),
    "evicted": Stage(
        Cause.EVICTED,
        11,
        "exceeds the limit",
        ("--mount", "emptydir=1Mi:/more"),
        "import time\nopen('/more/x', 'wb').write(bytes(8 << 20))\ntime.sleep(3600)\n",
    ),
    "hang": Stage(
        Cause.HANG, 14, "did not enter", ("--nproc", "2", "--memory", "2Gi", "--env", "DDP_HANG_FLOOR=2"), HANG
    ),
    "early-exit": Stage(
        Cause.ERROR,
        10,
        "ended with code 0 before the others; rank 0 then failed",
        ("--nnodes", "2", *HALF, "--memory", "1Gi", "--max-restarts", "0"),
        EARLY_EXIT,
    ),
    "rendezvous": Stage(
        Cause.RENDEZVOUS,
        13,
        "pod rendezvous-worker-1 not",
        ("--nnodes", "2", *HALF, *IDLE),
        change=to.second_is_mute,
        runs=True,
    ),
    "first-error": _failing("the 7th layer has no name", RAISE),
    "pods-gone": dataclasses.replace(_failing("kept in the job's annotation", RAISE), after=to.gone_from_the_cluster),
    "import": _failing("No module named 'flash_attention'", "import flash_attention\n", "--engine", "job"),
    "killed": _failing("SIGKILL", KILL, "--engine", "jobset", code=11),
    "cuda-oom": _failing("Tried to allocate", CUDA_OOM, cause=Cause.GPU_OOM),
    "host-oom": _failing("more --memory", HOST_OOM, "--memory", "128Mi", cause=Cause.HOST_OOM, code=11),
    "finished": Stage(Cause.FINISHED, 0, "has succeeded", ("--command", "true"), runs=True),
    "deadline": Stage(Cause.DEADLINE, 11, "DeadlineExceeded", ("--engine", "job", "--deadline", "1s", *NOWHERE, *IDLE)),
    "operator": _waiting(
        Cause.OPERATOR, "left to the controller 'kueue.x-k8s.io/multikueue'", change=to.left_to_another
    ),
    "operator-of-jobset": _waiting(
        Cause.OPERATOR,
        "left to the controller 'example.com/other'",
        *("--engine", "jobset"),
        change=to.left_to_another_job,
    ),
    "suspended": Stage(Cause.SUSPENDED, 12, "resume suspended", (*NOWHERE, *IDLE), after=to.suspend),
    "cut-off": Stage(Cause.SUSPENDED, 12, "was cut off before its end", (*NOWHERE, *IDLE), after=to.cut_off),
    "deleting": Stage(
        Cause.DELETING, 12, "waits for example.com/hold", (*NOWHERE, *IDLE), change=to.never_forgotten, after=to.delete
    ),
    "holder": _queued(Cause.UNSCHEDULABLE, "stage=nowhere"),
    "queued": _queued(Cause.QUEUED, "holds quota: holder"),
    "queued-second": _queued(Cause.QUEUED, "1 ahead of it"),
    "no-queue": _waiting(Cause.QUEUED, "'nope' does not exist", "--engine", "jobset", "--queue", "nope", *NOWHERE),
    "too-large-for-queue": _queued(
        Cause.QUEUED, "more than the queue 'busy' can ever admit", change=to.asks_for("memory", "3Gi")
    ),
    "outdone": Stage(
        Cause.PREEMPTED,
        11,
        "Kueue took its place away",
        ("--engine", "job", "--queue", "unfair", "--priority", "{tag}-low", *NOWHERE, *IDLE),
        after=to.outdo,
    ),
    "quota": _waiting(Cause.QUOTA, "none-of-these", "--priority", "{tag}-capped"),
    "quota-of-jobset": _waiting(Cause.QUOTA, "none-of-these", "--priority", "{tag}-capped", "--engine", "jobset"),
    "admission": _waiting(Cause.ADMISSION, "PodSecurity", change=to.privileged),
    "gpus": _waiting(Cause.UNSCHEDULABLE, "Insufficient nvidia.com/gpu", change=to.asks_for("nvidia.com/gpu", "9")),
    "memory": _waiting(Cause.UNSCHEDULABLE, "Insufficient memory", change=to.asks_for("memory", "64Ti")),
    "selector": _waiting(
        Cause.UNSCHEDULABLE, "nodeSelector of the pods: stage=nowhere", "--engine", "trainjob", *NOWHERE
    ),
    "taint": _waiting(Cause.UNSCHEDULABLE, "untolerated taint", "--node-selector", "stage={tag}-tainted"),
    "gate": _waiting(Cause.UNSCHEDULABLE, "the gate example.com/wait is closed", change=to.gated),
    "scheduler": _waiting(Cause.UNSCHEDULABLE, "The scheduler 'absent' has not looked", "--scheduler", "absent"),
    "no-claim": _waiting(Cause.VOLUME, "The claim 'nope' does not exist", "--mount", "pvc=nope:/data"),
    "claim-unbound": _waiting(Cause.VOLUME, "claim 'never-bound' has no volume", "--checkpoint-claim", "never-bound"),
    "image": _waiting(Cause.IMAGE, "cannot be got", "--image", "registry.invalid/nobody/nothing:1"),
    "image-name": _waiting(Cause.IMAGE, "InvalidImageName", "--image", "example.com/UPPER:1"),
    "secret": _waiting(Cause.CONFIG, "Secret 'hub' does not exist", "--secret-env", "TOKEN=hub:token"),
    "configmap": _waiting(Cause.CONFIG, "ConfigMap 'app' does not exist", "--mount", "configmap=app:/app"),
    "init": _waiting(Cause.INIT, "no such bucket", change=to.fails_before),
    "start": Stage(Cause.START, 10, "ddp-launch", ("--image", "localhost/busybox:1", *IDLE)),
    "store-refused": Stage(
        Cause.ADMISSION, 13, "the pod of its rendezvous store", change=to.store_is_privileged, runs=True
    ),
    "store": Stage(Cause.STORE, 13, "no pod has the role of the store", change=to.without("Job"), runs=True),
}


IN_ORDER: Final = ("holder", "queued", "queued-second", "too-large-for-queue")
"""Jobs of the queue 'busy', oldest first: their queue positions depend on their ages."""


@contextlib.contextmanager
def staged(space: Namespace) -> Iterator[Staging]:
    """Start all stages in parallel."""
    staging = Staging(space)
    is_over = threading.Event()
    pool = ThreadPoolExecutor(AT_ONCE)
    beats: list[Future[None]] = []
    try:
        staging.prepare()
        beats.append(pool.submit(staging.keep_alive, is_over))
        # Rendering redirects stdout, so it is sequential.
        made = {
            name: (name, stage, staging.objects(name, stage)) for name, stage in STAGES.items() if staging.can(stage)
        }
        # The pool limits the starts: a hundred pods in one second overload a small machine.
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
