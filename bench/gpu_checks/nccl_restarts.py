"""F2: two ranks on NCCL with default flags: after a fault both restart from the newest checkpoint."""

from __future__ import annotations

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.node_failures import measure_node_failures


def run(bench: Bench) -> None:
    """Disturb a run with default flags."""
    measure_node_failures(bench, "restarts", (), remains=False)
