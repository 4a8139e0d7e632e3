"""Jobs that fail after they have run, and the cause that ``why`` must name first.

Scripts print :data:`BEGINS` when their failure begins; ``bench why`` measures from there.
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
"""The pod ignores SIGTERM: a pod that ends immediately is replaced within 2 s, and is then no longer the cause."""
_LEAVING_LATE: Final = ("--nnodes", "2", *HALF, "--grace", "1m")
_TWO_RANKS: Final = ("--nproc", "2", "--memory", "1Gi")
_TWO_NODES: Final = ("--nnodes", "2", *HALF, "--command", "sleep 3600")


def delete_pod(staging: Staging, name: str) -> None:
    """Delete the second pod, like ``kubectl delete pod``."""
    pod = _second(staging, name)
    staging.space.api.delete(_path(staging, pod), uid=pod["metadata"]["uid"])


def evict_pod(staging: Staging, name: str) -> None:
    """Evict the second pod alone."""
    _evict(staging, _second(staging, name))


def drain_node(staging: Staging, name: str) -> None:
    """Cordon the second pod's node for a few seconds, and evict that pod alone."""
    pod = _second(staging, name)
    node = pod["spec"]["nodeName"]
    staging.cordon(node, closed=True)
    threading.Timer(CORDON_SECONDS, staging.cordon, (node,), {"closed": False}).start()
    _evict(staging, pod)


def kill_store(staging: Staging, name: str) -> None:
    """Delete the pod of the rendezvous store with a grace period of 0 s."""
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
    """Stage in which the second pod of a job ends slowly."""
    says = f"{name}-worker-1 was {end}"
    return Stage(cause, 11, says, _LEAVING_LATE, _LEAVES_LATE, fault=fault)


INCIDENTS: Final[Mapping[str, Stage]] = {
    "one-rank-raises": Stage(
        Cause.ERROR,
        10,
        "Rank 1 on one-rank-raises-worker-0 failed first: ValueError: the 7th layer has no name",
        (*_TWO_RANKS, "--max-restarts", "0"),
        _STEPS.replace("FAULT", "raise ValueError('the 7th layer has no name')"),
    ),
    "plain-hang": Stage(
        Cause.HANG,
        14,
        "rank 1 on plain-hang-worker-0, which did not enter all_reduce #61",
        _TWO_RANKS,
        _STEPS.replace("FAULT", "time.sleep(3600)"),
    ),
    "segfault": Stage(Cause.ERROR, 10, "SIGSEGV", ("--max-restarts", "0"), _SEGFAULT),
    "segfault-again": Stage(Cause.ERROR, 10, "SIGSEGV", ("--max-restarts", "2"), _SEGFAULT),
    "disk-full": Stage(Cause.ERROR, 10, "No space left on device", ("--max-restarts", "0"), _FULL),
    "pod-deleted": _left("pod-deleted", Cause.POD_DELETED, "deleted", delete_pod),
    "pod-evicted": _left("pod-evicted", Cause.EVICTED, "evicted", evict_pod),
    "node-drained": _left("node-drained", Cause.EVICTED, "evicted", drain_node),
    "store-killed": Stage(Cause.STORE, 0, "store", _TWO_NODES, fault=kill_store, runs=True),
}
