"""Which pods of a job on a cluster a fault is done to."""

from __future__ import annotations

from typing import Any

from bench.drivers.cluster_runs import BaselineRun, active_pods
from bench.measurements.recovery_cluster import FAULTS, PARTS
from kubectl_ddp.engines import Engine


def pod(name: str, phase: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "status": {"phase": phase}}


def test_a_failed_pod_that_a_job_keeps_takes_no_place_of_a_worker() -> None:
    pods = [
        pod("run-1-zzzzz", "Running"),
        pod("run-1-aaaaa", "Failed"),
        pod("run-0-bbbbb", "Running"),
        pod("run-2-ccccc", "Running", deletionTimestamp="2026-01-01T00:00:00Z"),
    ]
    assert [each["metadata"]["name"] for each in active_pods(pods)] == ["run-0-bbbbb", "run-1-zzzzz"]


def test_every_engine_gets_every_fault() -> None:
    for engine in ("indexed-job", "jobset", "trainjob"):
        for fault in FAULTS:
            assert f"{engine}-{fault.replace('_', '-')}" in PARTS


def test_launchers_and_workers_crash_in_place_on_every_engine_beside_a_stock_job() -> None:
    engines = {PARTS[f"{name}-crashes"][0].engine for name in ("pytorchjob", "indexed-job", "jobset", "trainjob")}
    assert engines == {*Engine} - {Engine.AUTO}
    assert PARTS["stock-crashes"][0] is BaselineRun
