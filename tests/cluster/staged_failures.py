"""Jobs that fail on purpose, each in its own way, side by side on a real cluster: what each is, and what is said."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from kubectl_ddp.why.model import Cause
from tests.cluster import staged_changes as to
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.staged_changes import CUDA_OOM, EARLY_EXIT, HANG, NOWHERE, RAISE
from tests.cluster.staging import AT_ONCE, HALF, IDLE, TAINT, Stage, Staging

STAGES: Final[Mapping[str, Stage]] = {
    # Those that take longest come first.
    "node-lost": Stage(
        cause=Cause.NODE_LOST,
        code=11,
        says="-lost under pod node-lost-worker-0 is lost",
        words=("--node-selector", "stage={tag}-lost", "--toleration", f"{TAINT}-own", *IDLE),
        after=to.runs_on_lost_node,
    ),
    "preempted": Stage(
        cause=Cause.PREEMPTED,
        code=11,
        says="had to make room for a pod of higher priority",
        words=("--node-selector", "stage={tag}-full", "--toleration", f"{TAINT}-own", "--priority", "{tag}-low", *IDLE),
        after=to.make_room_for_another,
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
    "early-exit": Stage(
        cause=Cause.ERROR,
        code=10,
        says="ended with code 0 before the others; rank 0 then failed",
        words=("--nnodes", "2", *HALF, "--memory", "1Gi", "--max-restarts", "0"),
        script=EARLY_EXIT,
        runs=True,
    ),
    "rendezvous": Stage(
        cause=Cause.RENDEZVOUS,
        says="pod rendezvous-worker-1 not",
        words=("--nnodes", "2", *HALF, *IDLE),
        runs=True,
        change=to.second_is_mute,
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
        after=to.gone_from_the_cluster,
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
        script="import time\nheld = b'x' * (1 << 30)\ntime.sleep(3600)\n",
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
        cause=Cause.OPERATOR, says="left to the controller 'kueue.x-k8s.io/multikueue'", change=to.left_to_another
    ),
    "operator-of-jobset": Stage(
        cause=Cause.OPERATOR,
        says="left to the controller 'example.com/nobody'",
        words=("--engine", "jobset", *IDLE),
        change=to.left_to_another_job,
    ),
    "suspended": Stage(
        cause=Cause.SUSPENDED, code=12, says="resume suspended", after=to.suspend, words=(*NOWHERE, *IDLE)
    ),
    "cut-off": Stage(
        cause=Cause.SUSPENDED, code=12, says="was cut off before its end", after=to.cut_off, words=(*NOWHERE, *IDLE)
    ),
    "deleting": Stage(
        cause=Cause.DELETING,
        code=12,
        says="waits for example.com/hold",
        words=(*NOWHERE, *IDLE),
        change=to.never_forgotten,
        after=to.delete,
    ),
    "holder": Stage(
        cause=Cause.UNSCHEDULABLE, says="stage=nowhere", words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE)
    ),
    "queued": Stage(
        cause=Cause.QUEUED, says="holds quota: holder", words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE)
    ),
    "queued-second": Stage(
        cause=Cause.QUEUED,
        says="1 ahead of it",
        words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE),
    ),
    "no-queue": Stage(
        cause=Cause.QUEUED,
        says="There is no queue 'nope'",
        words=("--engine", "jobset", "--queue", "nope", *NOWHERE, *IDLE),
    ),
    "too-large-for-queue": Stage(
        cause=Cause.QUEUED,
        says="more than the queue 'busy' can ever admit",
        words=("--engine", "job", "--queue", "busy", *NOWHERE, *IDLE),
        change=to.asks_for("memory", "3Gi"),
    ),
    "outdone": Stage(
        cause=Cause.PREEMPTED,
        code=11,
        says="Kueue took its place away",
        words=("--engine", "job", "--queue", "unfair", "--priority", "{tag}-low", *NOWHERE, *IDLE),
        after=to.outdo,
    ),
    "quota": Stage(cause=Cause.QUOTA, says="none-of-these", words=("--priority", "{tag}-capped", *IDLE)),
    "quota-of-jobset": Stage(
        cause=Cause.QUOTA, says="none-of-these", words=("--priority", "{tag}-capped", "--engine", "jobset", *IDLE)
    ),
    "admission": Stage(cause=Cause.ADMISSION, says="PodSecurity", change=to.privileged),
    "gpus": Stage(
        cause=Cause.UNSCHEDULABLE,
        says="Insufficient nvidia.com/gpu",
        change=to.asks_for("nvidia.com/gpu", "9"),
    ),
    "memory": Stage(cause=Cause.UNSCHEDULABLE, says="Insufficient memory", change=to.asks_for("memory", "64Ti")),
    "selector": Stage(
        cause=Cause.UNSCHEDULABLE,
        says="nodeSelector of the pods: stage=nowhere",
        words=("--engine", "trainjob", *NOWHERE, *IDLE),
    ),
    "taint": Stage(
        cause=Cause.UNSCHEDULABLE,
        says="untolerated taint",
        words=("--node-selector", "stage={tag}-tainted", *IDLE),
    ),
    "gate": Stage(cause=Cause.UNSCHEDULABLE, says="the gate example.com/wait is closed", change=to.gated),
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
    "init": Stage(cause=Cause.INIT, says="no such bucket", change=to.fails_before),
    "start": Stage(cause=Cause.START, code=10, says="ddp-launch", words=("--image", "localhost/busybox:1", *IDLE)),
    "store-refused": Stage(
        cause=Cause.ADMISSION, says="the pod of its rendezvous store", runs=True, change=to.store_is_privileged
    ),
    "store": Stage(cause=Cause.STORE, says="no pod has the role of the store", runs=True, change=to.without("Job")),
}


IN_ORDER: Final = ("holder", "queued", "queued-second", "too-large-for-queue")
"""Jobs of the queue 'busy'. Each of these has to be older than the next, since answers count those before."""


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
