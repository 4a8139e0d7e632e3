"""Faults in a job of two nodes, one process each, whose surviving workers keep running; stock torchrun and torchft too.

Two programs run under ``ddp-launch``: the reference trainer and a user's loop on the library. A round loses a node,
starts it again, kills its worker but not its agent, stops the node with SIGTERM, and starts it again. "Warm" means
that the round waits for the fork servers of both agents, because an agent has one after some seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.drivers.two_agent_job import GIVEN_UP, LOOP, TRAIN, TwoAgentJob, two_agent_job
from bench.harness import CannotMeasure, Options, Report
from bench.peers.torchft_driver import is_installed, torchft
from bench.peers.torchrun_driver import Step, Torchrun, torchrun

PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {"train": TRAIN, "library": LOOP}
OTHERS: Final = ("torchrun", "torchft")
PARTS: Final = (*PROGRAMS, *OTHERS)
STOCK: Final = ("--max-restarts=1000",)

BARS: Final = {
    "train_node_lost": 3.0,
    "train_join": 3.0,
    "train_join_gap": 0.3,
    "train_worker_lost": 0.3,
    "train_leave_exit": 1.0,
    "train_leave_gap": 1.0,
    "library_node_lost": 0.3,
    "library_join": 3.0,
    "library_join_gap": 0.3,
    "library_worker_lost": 0.3,
    "library_leave_exit": 1.0,
    "library_leave_gap": 1.0,
}
"""Fault → upper limit of its median, in seconds. Other figures have no limit."""


@dataclass(slots=True)
class RecoveryStats:
    """Seconds of what happened, by its name; None where nothing trained again."""

    tries: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, name: str, seconds: float | None) -> None:
        """Take down one try."""
        self.tries.setdefault(name, []).append(seconds)

    def since(self, name: str, begun: float, stepped: float | None) -> None:
        """Take down the time from a moment to a step."""
        self.add(name, None if stepped is None else stepped - begun)

    def seconds(self, name: str) -> list[float]:
        """Return the seconds of the attempts that recovered."""
        return [seconds for seconds in self.tries[name] if seconds is not None]

    def __str__(self) -> str:
        """The last of each."""
        last = {name: tries[-1] for name, tries in self.tries.items()}
        return ", ".join(
            f"{name} {'never' if seconds is None else f'{seconds:.2f} s'}" for name, seconds in last.items()
        )


def measure(directory: Path, report: Report, options: Options, parts: Collection[str]) -> None:
    """These of :data:`PARTS`, one after the other."""
    own, stock = RecoveryStats(), RecoveryStats()
    rounds = 1 if options.quick else 8
    for name in (name for name in PROGRAMS if name in parts):
        with two_agent_job(directory / f"ours-{name}", PROGRAMS[name]) as run:
            for number in range(1, rounds + 1):
                run_agent_round(run, name, own)
                options.progress(f"{name}, round {number}/{rounds}: {own}")
    for number in range((1 if options.quick else 2) if "torchrun" in parts else 0):
        run_torchrun_round(directory / f"stock-{number}", stock)
        options.progress(f"torchrun, round {number + 1}: {stock}")
    if "torchft" in parts and is_installed():
        run_torchft(directory / "torchft", stock, 2 if options.quick else 8, options)
    elif "torchft" in parts:
        options.progress("torchft is not installed: left out")
    report_results(report, own, stock)


def run_agent_round(run: TwoAgentJob, name: str, outcomes: RecoveryStats) -> None:
    """One of each fault; the job has both its nodes before and after."""
    lost = run.kill(1)
    outcomes.since(f"{name}_node_lost", lost, run.first_step(lost, world=1))
    joint = _join(run, name, outcomes)
    outcomes.since(f"{name}_node_lost_until_whole", lost, joint)
    for place in (0, 1):
        run.warm(place)
    run.train(world=2)
    worker, killed = run.worker(1), time.time()
    os.kill(worker, signal.SIGKILL)
    outcomes.since(f"{name}_worker_lost", killed, run.next_group_first_step(killed))
    outcomes.since(f"{name}_worker_lost_until_whole", killed, run.next_group_first_step(killed, world=2))
    run.train(world=2)
    left_at = time.time()
    outcomes.add(f"{name}_leave_exit", run.end(1))
    alone = run.first_step(left_at, world=1)
    outcomes.add(f"{name}_leave_gap", None if alone is None else alone - run.last_step(alone))
    _join(run, name, outcomes)
    run.train(world=2)


def _join(run: TwoAgentJob, name: str, outcomes: RecoveryStats) -> float | None:
    run.train(world=1)
    begun = run.start(1)
    joint = run.first_step(begun, world=2)
    outcomes.since(f"{name}_join", begun, joint)
    outcomes.add(f"{name}_join_gap", None if joint is None else joint - run.last_step(joint))
    return joint


def run_torchrun_round(directory: Path, outcomes: RecoveryStats) -> None:
    """Measure a plain DDP script under torch's launcher, until any new process steps. Each fault has its own job."""
    faults: dict[str, Callable[[Torchrun], float]] = {
        "torchrun_node_lost": lambda run: run.kill_agent(1),
        "torchrun_worker_lost": lambda run: run.kill_worker(1),
        "torchrun_leave": lambda run: run.end_agent(1),
    }
    for name, fault in faults.items():
        with torchrun(directory / name, nnodes="1:2", nproc=1, arguments=STOCK) as run:
            run.start_agent()
            if run.wait(lambda step: step.step > 1, timeout=GIVEN_UP, workers=2) is None:
                raise CannotMeasure("Stock torchrun did not begin to train.")
            before = {step.pid for step in run.steps()}
            begun = fault(run)
            stepped = run.wait(_first_after(begun, before), timeout=GIVEN_UP)
            outcomes.since(name, begun, stepped)


def _first_after(begun: float, before: set[int]) -> Callable[[Step], bool]:
    return lambda step: step.time > begun and step.pid not in before


def run_torchft(directory: Path, outcomes: RecoveryStats, rounds: int, options: Options) -> None:
    """Kill a replica and restart it."""
    with torchft(directory) as run:
        if run.first_step(0.0, 2, timeout=GIVEN_UP) is None:
            options.progress("torchft did not begin to train: left out")
            return
        for number in range(1, rounds + 1):
            killed = run.kill(1)
            outcomes.since("torchft_worker_lost", killed, run.first_step(killed, 1, timeout=GIVEN_UP))
            begun = run.start(1)
            joint = run.first_step(begun, 2, timeout=GIVEN_UP)
            outcomes.since("torchft_join", begun, joint)
            outcomes.add("torchft_join_gap", None if joint is None else joint - run.last_step(joint))
            options.progress(f"torchft, round {number}/{rounds}: {outcomes}")


def report_results(report: Report, own: RecoveryStats, others: RecoveryStats) -> None:
    """Figures of ours with their bars, and baselines."""
    for name, tries in own.tries.items():
        seconds = own.seconds(name)
        summary = report.figure(f"{name}_seconds", seconds)
        if name in BARS:
            report.at_most(f"median seconds, {name.replace('_', ' ')}", summary.median, BARS[name])
        report.at_least(f"share of {len(tries)}, {name.replace('_', ' ')}", len(seconds) / len(tries), 1.0)
    for name, tries in others.tries.items():
        report.baseline(f"{name}_recovered_ratio", len(others.seconds(name)) / len(tries))
        if others.seconds(name):
            report.baseline(f"{name}_seconds", others.seconds(name))
