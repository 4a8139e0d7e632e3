"""Which pods of a job on a cluster a fault is done to."""

from __future__ import annotations

from typing import Any

from bench.drivers.cluster_runs import active_pods


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
