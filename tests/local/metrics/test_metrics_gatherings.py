"""Metrics of a launcher about groups that do not form and collectives that fail: real ranks, and gloo."""

from __future__ import annotations

from ddp_trainer.metrics.storage.mmap_directory import agent_metrics_path, rank_metrics_path
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, read
from tests.support.launch_harness import Stage, wait_until

ONE_DIES = """
import os, signal, torch, torch.distributed as dist
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or the launcher might be faster than the broken connection
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(3)
while True:
    dist.all_reduce(torch.ones(1))
"""


def test_tries_to_reach_a_store_that_is_not_there_are_counted(stage: Stage) -> None:
    boards = stage.folder / "boards"

    def failures() -> float:
        try:
            return read(agent_metrics_path(boards), AGENT).values["ddp_rendezvous_failures_total"]
        except FileNotFoundError:
            return 0.0

    stage.agent(0, stage.script("pass"), nnodes="1", DDP_METRICS_DIR=str(boards), DDP_METRICS_PORT="0")
    wait_until(lambda: failures() >= 2, "it tries again")


def test_a_collective_that_breaks_is_counted_on_the_rank_that_saw_it_and_not_on_the_one_that_died(stage: Stage) -> None:
    boards = stage.folder / "boards"
    flags = ["--nproc-per-node", "2", "--max-restarts", "0", "--rdzv-conf", "timeout=60", stage.script(ONE_DIES)]
    run = stage.launch(*flags, DDP_METRICS_DIR=str(boards), DDP_METRICS_PORT="0", OMP_NUM_THREADS="1")
    assert run.code() != 0
    survivor, culprit = (read(rank_metrics_path(boards, rank), RANK).values for rank in (0, 1))
    assert (survivor["ddp_collective_errors_total"], culprit["ddp_collective_errors_total"]) == (1, 0), run.output
    assert read(agent_metrics_path(boards), AGENT).values["ddp_worker_failures_total{collective_error}"] == 0, (
        "a consequence"
    )
