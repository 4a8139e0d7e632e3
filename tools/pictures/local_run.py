"""The run that the pictures show: two nodes with two processes each. A worker is killed, a node leaves and returns."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.drivers.jobs import LocalJobs, Rank, ranks_have_new_step
from bench.harness import CannotMeasure
from ddp_trainer.common.constants import Role
from tools.pictures.recording import Recording, record_output, wrap_lines
from tools.pictures.terminal_svg import Frame

NAME: Final = "python-text"
RANKS: Final = 4
STEPS: Final = 1900
"""Up to five minutes on two cores, by what else runs there."""
SUBMIT: Final = (
    *("submit", "--local", "--name", NAME, "--nnodes", "1:2", "--nproc", "2", "--module", "ddp_trainer", "--", "train"),
    *("--task", "text", "--data", sysconfig.get_path("stdlib"), "--model", "gpt:layers=2", "--window", "64"),
    *("--global-batch", "32", "--batch-slices", "4", "--max-steps", str(STEPS), "--checkpoint-steps", str(STEPS // 10)),
    *("--learning-rate", "0.004", "--warmup-steps", "30"),
)
HANGING: Final = "stuck"
SUBMIT_HANG: Final = (
    *("submit", "--local", "--name", HANGING, "--nnodes", "1", "--nproc", "2", "--module", "ddp_trainer"),
    *("--", "train", "--task", "digits", "--epochs", "5000"),
)
KILL_AT_STEP: Final = STEPS // 4
SHRINK_AT_STEP: Final = STEPS // 2
GROW_AT_STEP: Final = STEPS * 3 // 4
LAST_STEP: Final = STEPS * 49 // 50
"""Step at whose end the dashboards are drawn: afterwards the pods end."""
BEFORE_SECONDS: Final = 4.0
AFTER_SECONDS: Final = 5.0
LAST_SECONDS: Final = 4.0
"""Duration of the animation's last screen."""
MOST_FRAMES: Final = 40
PATIENCE_SECONDS: Final = 600.0
COLUMNS: Final = 124
ROWS: Final = 16


@dataclass(frozen=True, slots=True)
class Kill:
    """A killed worker, and the time of the recovery."""

    rank: int
    pid: int
    killed: float
    """Unix time."""
    recovered: float
    """Unix time of the last first step of a rank after it."""


def plugin_command(*words: str) -> list[str]:
    """Return the command line of ``kubectl ddp WORDS``."""
    return [sys.executable, "-m", "kubectl_ddp", *words]


def submit_job(jobs: LocalJobs) -> None:
    """Submit the run, and wait until all ranks train."""
    jobs.run(*SUBMIT)
    _wait(jobs, NAME, _all_beyond(RANKS, 0))


def scrape_targets(jobs: LocalJobs) -> dict[str, dict[str, str]]:
    """Return the addresses of the metrics of the pods, with the labels that a cluster adds."""
    found = {}
    for pod in jobs.pods(NAME, Role.WORKER):
        labels = {
            "namespace": "training",
            "pod": pod["metadata"]["name"],
            "node": pod["spec"].get("nodeName") or "laptop",
        }
        found[f"{pod['status']['podIP']}:9464"] = labels
    return found


def record_kill(jobs: LocalJobs) -> tuple[Kill, list[Frame]]:
    """Record ``top`` while a worker is killed and the group recovers."""
    with Recording(plugin_command("top", NAME), jobs.environment, columns=COLUMNS, rows=ROWS) as recording:
        ranks = _wait(jobs, NAME, _all_beyond(RANKS, KILL_AT_STEP))
        victim, killed = ranks[RANKS - 1], time.time()
        os.kill(victim.pid, signal.SIGKILL)
        again = _wait(jobs, NAME, ranks_have_new_step(RANKS, killed))
        kill = Kill(victim.rank, victim.pid, killed, max(rank.last_step_time for rank in again.values()))
        while (
            recording.screens()[-1][0] < time.time() - 30 or recording.screens()[-1][0] < kill.recovered + AFTER_SECONDS
        ):
            time.sleep(0.2)
        screens = recording.screens()
    return kill, _frames(screens, kill)


def resize_group(jobs: LocalJobs) -> None:
    """Train on one node for a quarter of the run, then on both again, until just before the end."""
    _wait(jobs, NAME, _all_beyond(RANKS, SHRINK_AT_STEP))
    jobs.run("scale", NAME, "--nnodes", "1")
    _wait(jobs, NAME, _all_beyond(RANKS // 2, GROW_AT_STEP))
    jobs.run("scale", NAME, "--nnodes", "2")
    _wait(jobs, NAME, _all_beyond(RANKS, LAST_STEP))


def _frames(screens: list[tuple[float, tuple[str, ...]]], kill: Kill) -> list[Frame]:
    start = kill.killed - BEFORE_SECONDS
    shown = [(moment, lines) for moment, lines in screens if moment >= start]
    every = -(-len(shown) // MOST_FRAMES)
    shown = [*shown[:-1:every], shown[-1]]
    ends = [moment for moment, _ in shown[1:]] + [shown[-1][0] + LAST_SECONDS]
    return [
        Frame(max(0.05, end - moment), lines, _kill_status(moment, kill))
        for (moment, lines), end in zip(shown, ends, strict=True)
    ]


def _kill_status(moment: float, kill: Kill) -> str:
    if moment < kill.killed:
        return ""
    if moment < kill.recovered:
        return f"$ kill -9 {kill.pid}   # rank {kill.rank}, {moment - kill.killed:.1f} s ago"
    return f"All {RANKS} ranks trained again {kill.recovered - kill.killed:.1f} s after the kill of rank {kill.rank}."


def record_hang(jobs: LocalJobs) -> list[str]:
    """Stop a rank of a second job, and return what ``why`` prints about it."""
    jobs.run(*SUBMIT_HANG)
    try:
        stopped = _wait(jobs, HANGING, _all_beyond(2, 20))[1].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            return _named_cause(jobs)
        finally:
            os.kill(stopped, signal.SIGCONT)
    finally:
        jobs.run("delete", HANGING, "--yes", check=False)


def _named_cause(jobs: LocalJobs) -> list[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        lines = record_output(plugin_command("why", HANGING), jobs.environment, columns=COLUMNS)
        if "rank 1" in "\n".join(lines):
            return wrap_lines(lines, COLUMNS)
        time.sleep(1.0)
    raise CannotMeasure(f"why named no rank of job {HANGING}: {lines}")


def _all_beyond(count: int, step: int) -> Callable[[dict[int, Rank]], bool]:
    return lambda ranks: len(ranks) == count and all(rank.step > step for rank in ranks.values())


def _wait(jobs: LocalJobs, name: str, holds: Callable[[dict[int, Rank]], bool]) -> dict[int, Rank]:
    ranks = jobs.wait(name, holds, timeout=PATIENCE_SECONDS)
    if ranks is None:
        raise CannotMeasure(f"Job {name} did not get so far: {jobs.run('logs', name, check=False)[-2000:]}")
    return ranks
