"""F1: two ranks on NCCL, one of which is killed, stopped or leaves; the other one keeps its process and its state."""

from __future__ import annotations

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.node_failures import measure_node_failures


def run(bench: Bench) -> None:
    """Disturb a run with ``--survive-on-nccl``."""
    measure_node_failures(bench, "survivors", ("--survive-on-nccl",), remains=True)
