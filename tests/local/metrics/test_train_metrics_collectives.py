"""Metrics of ranks that are blocked, late, are stopped, hold the GIL or are dead, with a real group."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.common.metric_names import Metric
from tests.support.launch_harness import HANGING, Running, Stage, order_fault, wait_until, worker_pid
from tests.support.metrics_processes import Scrape, scraped


class Pod:
    """A launcher with two ranks, and its metrics."""

    def __init__(self, stage: Stage) -> None:
        self.folder = stage.folder
        self.boards = stage.folder / "boards"
        flags = ["--metrics-port", "0", "--nproc-per-node", "2", "--max-restarts", "3", str(HANGING)]
        values = {"TROUBLE": str(stage.folder), "DDP_METRICS_DIR": str(self.boards)}
        self.run: Running = stage.launch(*flags, **values, DDP_METRICS_ADDRESS="127.0.0.1")
        self.address = self.run.line(r"(http://127\.0\.0\.1:\d+/metrics)")[1]

    def scrape(self) -> Scrape:
        return scraped(self.address)

    def until(self, holds: Callable[[Scrape], object], what: str) -> Scrape:
        """Scrape again and again until it shows what must come; every one is answered within two seconds."""
        seen = [self.scrape()]

        def is_so() -> bool:
            seen.append(self.scrape())
            return bool(holds(seen[-1]))

        wait_until(is_so, what)
        return seen[-1]

    def inject_fault(self, kind: str) -> None:
        """Have rank 1 get into trouble."""
        order_fault(self.folder, 1, kind)
        self.run.line(f"trouble: rank=1 kind={kind}")


def begun(scrape: Scrape, rank: int) -> float | None:
    return scrape.value(Metric.ENQUEUED, rank=str(rank), process_group="default")


def is_behind(scrape: Scrape) -> bool:
    """Rank 0 is in the collective that rank 1 has not entered, and no step is made."""
    first, second = begun(scrape, 0), begun(scrape, 1)
    return first is not None and second is not None and first == second + 1


def test_every_kind_of_sick_rank_is_told_of(stage: Stage) -> None:
    pod = Pod(stage)
    pod.until(lambda seen: (begun(seen, 0) or 0) > 5 and (seen.value(Metric.STEPS, rank="1") or 0) > 5, "it trains")

    # Rank 1 outside the collective, rank 0 blocked in the collective with the GIL free.
    pod.inject_fault("nap")
    looping = pod.until(is_behind, "rank 0 waits for rank 1")
    stood = looping.value(Metric.LAST_STEP_TIMESTAMP, rank="0")
    again = pod.until(is_behind, "it stays so")
    assert again.value(Metric.LAST_STEP_TIMESTAMP, rank="0") == stood
    assert [again.value(Metric.RANK_UP, rank=rank) for rank in "01"] == [1, 1]
    order_fault(pod.folder, 1, "wake")
    pod.until(lambda seen: (seen.value(Metric.LAST_STEP_TIMESTAMP, rank="0") or 0) > (stood or 0), "it goes on")

    # Stopped: its own numbers stay, and the kernel's state of the process is exported.
    pid = worker_pid(pod.run.pid, 1)
    os.kill(pid, signal.SIGSTOP)
    stopped = pod.until(lambda seen: seen.value("ddp_rank_stopped", rank="1") == 1, "it is stopped")
    done = stopped.value(Metric.STEPS, rank="1")
    assert done is not None
    pod.until(lambda seen: (begun(seen, 0) or 0) >= (begun(stopped, 1) or 0), "rank 0 comes as far as rank 1")
    os.kill(pid, signal.SIGCONT)
    going = pod.until(lambda seen: (seen.value(Metric.STEPS, rank="1") or 0) > done + 1, "it goes on")
    assert going.value("ddp_rank_stopped", rank="1") == 0

    # The GIL is held inside a collective that the rank has entered: only torch's own threads can know.
    pod.inject_fault("wait")
    held = pod.until(lambda seen: begun(seen, 0) == (begun(seen, 1) or 0) + 1, "rank 1 is where its recorder says")
    assert held.value(Metric.RANK_UP, rank="1") == 1
    steps = held.value(Metric.STEPS, rank="1")

    # Killed: the reason is counted, the group re-forms, and its counters continue in the same series.
    os.kill(pid, signal.SIGKILL)
    back = pod.until(lambda seen: (seen.value(Metric.STEPS, rank="1") or 0) > (steps or 0) + 3, "it steps again")
    assert back.value(Metric.FAILURES, reason=FailureReason.SIGKILL) == 1
    assert back.value(Metric.RANK_UP, rank="1") == 1
    assert (begun(back, 1) or 0) < (begun(held, 1) or 0)
    assert {series for series in held.series() if "process_group" not in dict(series[1])} <= back.series()

    # C code that holds the GIL without a system call.
    pod.inject_fault("regex")
    matching = pod.until(is_behind, "it is in a regular expression")
    assert matching.value("ddp_rank_stopped", rank="1") == 0
    assert (matching.value("ddp_rank_cpu_seconds_total", rank="1") or 0) > 0
