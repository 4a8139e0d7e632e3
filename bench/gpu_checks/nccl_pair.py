"""P: two ranks train on NCCL with default flags, undisturbed: the bits of one rank, and a clean end."""

from __future__ import annotations

import time
from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.node_failures import SOCKETS, START_SECONDS, compare_weights, nodes_of
from bench.gpu_checks.rank_metrics import scrape
from ddp_trainer.process.flight_recorder import fetch_record

STEPS: Final = 40
RECORD_SECONDS: Final = 5.0
RECORDER: Final = {"TORCH_FR_BUFFER_SIZE": "2000"}
DEBUG: Final = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def run(bench: Bench) -> None:
    """Train 40 steps, stop, and compare the weights."""
    found = bench.findings
    nodes = nodes_of(bench, "pair", "auto", (), (SOCKETS | DEBUG if bench.is_gpu else {}) | RECORDER, 2, least=2)
    with nodes:
        begun = time.monotonic()
        timeout = bench.timeout_factor * START_SECONDS if not bench.is_gpu else bench.seconds_left - 8.0
        ended = nodes.wait_for_step(begun, timeout, world=2, steps=STEPS)
        for agent in nodes.agents.values():
            print(agent.output)  # the log of this check has what NCCL printed
        found.require(f"two ranks committed {STEPS} steps", ended is not None)
        if ended is None:
            found.details["printed"] = nodes.tail()
            return
        first = nodes.committed_steps()[0][0]
        found.add("step_seconds", (ended - first) / (STEPS - 1))
        backends = {str(event["backend"]) for agent in nodes.agents.values() for _, event in agent.events("started")}
        expected = "nccl" if bench.is_gpu else "gloo"
        found.require(f"--backend auto takes {expected} ({', '.join(sorted(backends))})", backends == {expected})
        for rank, port in nodes.metrics_ports.items():
            series, _ = scrape(port, rank)
            found.at_least(f"step in the metrics of rank {rank}", series.get("ddp_step", 0.0), STEPS / 2)
        record = fetch_record(nodes.worker_socket(0), bench.bounded(RECORD_SECONDS))
        found.at_least(
            "all_reduces of the default group in rank 0's flight recorder",
            sum("all_reduce" in collective for collective in record.collectives),
            1,
        )
        codes = nodes.stop(max(bench.seconds_left, 5.0))
        found.at_most("agents that did not stop in good order", sum(code != 143 for code in codes), 0)
        differing, _ = compare_weights(bench, "pair", nodes)
    found.at_most("weights unlike those of one rank on the CPU", differing, 0)
