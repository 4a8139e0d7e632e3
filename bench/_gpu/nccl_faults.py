"""F: two ranks on one GPU by NCCL, under ``ddp-launch``: killed, stopped and leaving ranks, and the weights afterwards.

NCCL refuses two ranks on one GPU of one host. With another ``NCCL_HOSTID`` for each node it takes them for two hosts
and connects them by sockets. From NCCL 2.30 on ``NCCL_MULTI_RANK_GPU_ENABLE=1`` allows it on one host, through shared
memory. Neither shows NVLink, NVLS, InfiniBand, or how long anything takes there.

Source: NCCL, src/init.cc (duplicate GPUs) and src/misc/utils.cc (``getHostHash``).
"""

from __future__ import annotations

import time
from typing import Final

from bench._gpu.faults_of_nodes import disturb, judge, two_nodes
from bench._gpu.findings import Bench, NotSupported
from bench._gpu.launches import trainer_flag
from bench._gpu.probe import nccl_version

ALL: Final = {"NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
SOCKETS: Final = {**ALL, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
SHARED_MEMORY: Final = {
    **ALL,
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_HOSTID": "one-host",
}
FIRST_WITH_MANY_RANKS: Final = (2, 30)
SURVIVES: Final = "nccl"
"""Part of the name of the flag that lets a process survive its NCCL group."""
END_SECONDS: Final = 35.0
"""Time to stop the run and to repeat its steps undisturbed."""


def run(bench: Bench) -> None:
    """Disturb a run by each transport that this NCCL has."""
    arms = {"sockets": SOCKETS}
    version = tuple(int(part) for part in nccl_version().split(".")[:2]) if bench.is_gpu else ()
    if bench.is_gpu and not version:
        raise NotSupported("this torch has no NCCL")
    if version >= FIRST_WITH_MANY_RANKS:
        arms["shared_memory"] = SHARED_MEMORY
    else:
        bench.findings.leave_out("shared memory", f"NCCL {nccl_version() or 'none'} is older than 2.30")
    flag = trainer_flag(SURVIVES) if bench.is_gpu else None
    if bench.is_gpu and flag is None:
        bench.findings.leave_out("surviving processes", "the trainer has no flag to stay in its process on NCCL")
    each = (bench.seconds_left - END_SECONDS * len(arms)) / len(arms)
    for name, variables in arms.items():
        end = time.monotonic() + max(each, 0.0)
        backend = "nccl" if bench.is_gpu else "gloo"
        nodes = two_nodes(bench, name, backend, (flag,) if flag else (), variables if bench.is_gpu else {})
        with nodes:
            outcomes = disturb(bench, nodes, end, seed=0, most=bench.size(60, 3))
            judge(bench, name, nodes, outcomes, stays=bool(flag) or not bench.is_gpu)
