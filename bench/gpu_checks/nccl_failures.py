"""F: two to four ranks on one GPU by NCCL, under ``ddp-launch``: killed, stopped and leaving ranks, and the weights.

Two ranks are disturbed with torch's error handling off, as survivors need it, and with its default; then four ranks.

NCCL refuses two ranks on one GPU of one host. With another ``NCCL_HOSTID`` for each node it takes them for two hosts
and connects them by sockets. From NCCL 2.30 on ``NCCL_MULTI_RANK_GPU_ENABLE=1`` allows it on one host, through shared
memory. Neither shows NVLink, NVLS, InfiniBand, or how long anything takes there.

Source: NCCL, src/init.cc (duplicate GPUs) and src/misc/utils.cc (``getHostHash``).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench.gpu_checks.check_report import Bench, NotSupported
from bench.gpu_checks.launches import Nodes, trainer_flag
from bench.gpu_checks.node_failures import compare_weights, inject_faults, nodes_of, report_results
from bench.gpu_checks.probe import nccl_version
from bench.harness import CannotMeasure

ALL: Final = {"NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}
SOCKETS: Final = {**ALL, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
SHARED_MEMORY: Final = {
    **ALL,
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_HOSTID": "one-host",
}
FIRST_WITH_MANY_RANKS: Final = (2, 30)
KEEPS_WATCHDOG: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
"""torch's default: its watchdog ends a process whose collective fails, so none survives its group. Survivors set 0."""
SURVIVES: Final = "nccl"
"""Part of the name of the flag that lets a process survive its NCCL group."""
END_SECONDS: Final = 20.0
"""Time to repeat the steps of all runs undisturbed."""
LEAST_SECONDS: Final = 15.0
"""Time in which the ranks of a run start and come through a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScenario:
    """One run that is disturbed."""

    name: str
    variables: dict[str, str]
    share: float
    """Share of the time that remains when this run starts."""
    most: int
    """Faults."""
    count: int = 2
    """Nodes, with a rank each."""
    stays: bool = True
    """Survivors are to keep their processes."""
    agreed: int = 0
    """Regroups at which all ranks live and leave their group together."""


def run(bench: Bench) -> None:
    """Disturb run after run; then compare the weights of all of them with those of undisturbed runs."""
    version = tuple(int(part) for part in nccl_version().split(".")[:2]) if bench.is_gpu else ()
    if bench.is_gpu and not version:
        raise NotSupported("this torch has no NCCL")
    flag = trainer_flag(SURVIVES) if bench.is_gpu else None
    if bench.is_gpu and flag is None:
        bench.findings.mark_unsupported("surviving processes", "the trainer has no flag to stay in its process on NCCL")
    with ExitStack() as stack:
        runs: list[tuple[FaultScenario, Nodes]] = []
        for arm in fault_scenarios(bench, version, stays=bool(flag) or not bench.is_gpu):
            seconds = arm.share * (bench.seconds_left - END_SECONDS)
            if seconds < LEAST_SECONDS:
                bench.findings.mark_unsupported(arm.name, f"{max(seconds, 0.0):.0f} s were left for it")
                continue
            backend, variables = ("nccl", arm.variables) if bench.is_gpu else ("gloo", {})
            nodes = nodes_of(bench, arm.name, backend, (flag,) if flag else (), variables, arm.count)
            stack.enter_context(nodes)
            end = time.monotonic() + seconds
            try:
                outcomes = inject_faults(bench, nodes, end, seed=0, most=arm.most, agreed=arm.agreed)
            except CannotMeasure as error:
                bench.findings.require(f"{arm.name}: {arm.count} ranks train", holds=False)
                bench.findings.mark_unsupported(arm.name, str(error))
                continue
            report_results(bench, arm.name, nodes, outcomes, stays=arm.stays, agreed=arm.agreed)
            runs.append((arm, nodes))
        with ThreadPoolExecutor() as pool:
            compared = [(arm, pool.submit(compare_weights, bench, arm.name, nodes)) for arm, nodes in runs]
            for arm, weights in compared:
                differing, steps = weights.result()
                bench.findings.add(f"{arm.name}_steps_count", steps)
                bench.findings.at_most(f"{arm.name}: weights unlike those of an undisturbed run", differing, 0)


def fault_scenarios(bench: Bench, version: tuple[int, ...], *, stays: bool) -> list[FaultScenario]:
    """Return what is disturbed, the most important first; a rehearsal on gloo, which reads no variable of NCCL, needs
    one of them.
    """
    sockets = FaultScenario(
        name="sockets",
        variables=SOCKETS,
        share=0.55,
        most=bench.size(60, 3),
        stays=stays,
        agreed=bench.size(20, 2) if stays else 0,
    )
    if not bench.is_gpu:
        return [sockets]
    many = SHARED_MEMORY if version >= FIRST_WITH_MANY_RANKS else SOCKETS
    if many is SOCKETS:
        bench.findings.mark_unsupported("shared memory", f"NCCL {nccl_version()} is older than 2.30")
    return [
        sockets,
        FaultScenario(
            name="handling_3", variables=SOCKETS | KEEPS_WATCHDOG, share=0.5, most=bench.size(6, 1), stays=False
        ),
        FaultScenario(name="four_ranks", variables=many, share=1.0, most=bench.size(60, 1), count=4, stays=stays),
    ]
