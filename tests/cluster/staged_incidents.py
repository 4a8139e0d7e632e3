"""Jobs that ran and then met a failure: what each is, and what ``why`` has to name first.

Scripts print :data:`BEGINS` where their failure begins, which is what ``bench why`` counts from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from kubectl_ddp.status.termination_message import stores, workers
from kubectl_ddp.why.model import Cause
from tests.cluster.staging import HALF, Json, Stage, Staging

BEGINS: Final = "the failure begins"
CORDON_SECONDS: Final = 15.0

_SAY: Final = f"import os, sys, time\nprint({BEGINS!r}, flush=True)\n"
_SEGFAULT: Final = f"{_SAY}import ctypes\nctypes.string_at(0)\n"
_STEPS: Final = f"""
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100000):
    if step == 60 and dist.get_rank() == 1:
        print({BEGINS!r}, flush=True)
        FAULT
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
_FULL: Final = f"""{_SAY}
with open("/dev/shm/full", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""
_LEAVES_LATE: Final = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(3600)
"""
"""A pod that ends at once is replaced in two seconds, and its end is no cause any more."""
_LEAVING_LATE: Final = ("--nnodes", "2", *HALF, "--grace", "1m")
_TWO_RANKS: Final = ("--nproc", "2", "--memory", "1Gi")
_TWO_NODES: Final = ("--nnodes", "2", *HALF, "--command", "sleep 3600")


def delete_pod(staging: Staging, name: str) -> None:
    """As ``kubectl delete pod``."""
    pod = _second(staging, name)
    staging.space.api.delete(_path(staging, pod), uid=pod["metadata"]["uid"])


def evict_pod(staging: Staging, name: str) -> None:
    """As a drain does it, to this pod alone."""
    _evict(staging, _second(staging, name))


def drain_node(staging: Staging, name: str) -> None:
    """As ``kubectl drain``, but other people's pods stay, and the node is closed for a few seconds only."""
    pod = _second(staging, name)
    node = pod["spec"]["nodeName"]
    staging.cordon(node, closed=True)
    threading.Timer(CORDON_SECONDS, staging.cordon, (node,), {"closed": False}).start()
    _evict(staging, pod)


def kill_store(staging: Staging, name: str) -> None:
    """Delete the pod of its rendezvous store without any grace."""
    (pod,) = stores(staging.backend.job(name).pods)
    staging.space.api._send("DELETE", _path(staging, pod), {}, body={"gracePeriodSeconds": 0})


def _second(staging: Staging, name: str) -> Json:
    return sorted(workers(staging.backend.job(name).pods), key=lambda pod: str(pod["metadata"]["name"]))[1]


def _path(staging: Staging, pod: Json) -> str:
    return staging.space.path("v1", "pods", pod["metadata"]["name"])


def _evict(staging: Staging, pod: Json) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    staging.space.api.create(f"{_path(staging, pod)}/eviction", body)


def _left(name: str, cause: Cause, end: str, fault: Callable[[Staging, str], None]) -> Stage:
    """The second pod of a job ends, and takes its time."""
    says = f"{name}-worker-1 was {end}"
    return Stage(cause=cause, code=11, says=says, words=_LEAVING_LATE, script=_LEAVES_LATE, fault=fault, runs=True)


INCIDENTS: Final[Mapping[str, Stage]] = {
    "one-rank-raises": Stage(
        cause=Cause.ERROR,
        code=10,
        says="Rank 1 on one-rank-raises-worker-0 failed first: ValueError: the 7th layer has no name",
        words=(*_TWO_RANKS, "--max-restarts", "0"),
        script=_STEPS.replace("FAULT", "raise ValueError('the 7th layer has no name')"),
        runs=True,
    ),
    "plain-hang": Stage(
        cause=Cause.HANG,
        code=14,
        says="rank 1 on plain-hang-worker-0, which did not enter all_reduce #61",
        words=_TWO_RANKS,
        script=_STEPS.replace("FAULT", "time.sleep(3600)"),
        runs=True,
    ),
    "segfault": Stage(
        cause=Cause.ERROR, code=10, says="SIGSEGV", words=("--max-restarts", "0"), script=_SEGFAULT, runs=True
    ),
    "segfault-again": Stage(
        cause=Cause.ERROR, code=10, says="SIGSEGV", words=("--max-restarts", "2"), script=_SEGFAULT, runs=True
    ),
    "disk-full": Stage(
        cause=Cause.ERROR,
        code=10,
        says="No space left on device",
        words=("--max-restarts", "0"),
        script=_FULL,
        runs=True,
    ),
    "pod-deleted": _left("pod-deleted", Cause.POD_DELETED, "deleted", delete_pod),
    "pod-evicted": _left("pod-evicted", Cause.EVICTED, "evicted", evict_pod),
    "node-drained": _left("node-drained", Cause.EVICTED, "evicted", drain_node),
    "store-killed": Stage(
        cause=Cause.STORE,
        code=0,
        says="store",
        words=_TWO_NODES,
        fault=kill_store,
        runs=True,
    ),
}
