"""Time and success rate of the recovery from a fault, compared with stock torchrun under the same faults.

Ours is a local job of the reference trainer, watched through the metrics of its ranks: it counts as recovered when
every rank of the world it should have has committed a step after the fault. Stock torchrun runs a plain DDP script
that saves after every step, with restarts allowed, and is watched through the script's own log.

``--quick`` takes about three minutes on a quiet machine: it injects each fault once or twice, and leaves out torchrun
and torchft, which often take a minute to recover or never do. ``--only`` names some of the faults, with commas.

:mod:`bench.drivers.replicas` measures models that are spread over ranks; torchrun's script recovers these from a
checkpoint only.

:mod:`bench.drivers.agent_recovery` measures processes that survive their group, with two agents and no engine. torchft
is measured if it is installed. ``pip download torchft`` finds version 0.2.0 with a wheel for Linux; it needs
opentelemetry. This project does not depend on it. Run ``PYTHONPATH=FOLDER make bench BENCH=recovery`` after ``pip
install --target FOLDER --no-deps torchft opentelemetry-…``.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.drivers import agent_recovery, replicas
from bench.drivers.fork_server import children, is_fork_server_ready
from bench.drivers.jobs import POLL_SECONDS, LocalJobs, Rank, ranks_have_new_step
from bench.drivers.two_agent_job import GIVEN_UP
from bench.harness import CannotMeasure, Options, Report
from bench.peers.torchrun_driver import OURS, Torchrun, torchrun
from ddp_trainer.common.constants import Role

SUMMARY = "seconds from a killed worker, a lost node, a scale-up or a lost store to the next committed step"

NPROC: Final = 2
STOCK: Final = ("--max-restarts=1000",)


@dataclass(slots=True)
class RecoveryAttempts:
    """Outcomes of one fault: seconds where it recovered."""

    seconds: list[float] = field(default_factory=list)
    count: int = 0

    def add(self, seconds: float | None) -> None:
        """Take down one try; None did not recover."""
        self.count += 1
        if seconds is not None:
            self.seconds.append(seconds)

    @property
    def share(self) -> float:
        """Part that recovered."""
        return len(self.seconds) / self.count if self.count else 0.0

    def __str__(self) -> str:
        """The last outcome."""
        if not self.count:
            return "left out"
        return f"{self.seconds[-1]:.2f} s" if self.seconds else "not recovered"


@contextmanager
def job(jobs: LocalJobs, name: str, nnodes: str, nodes: int) -> Iterator[None]:
    """A local job that trains until it is deleted, with ``nodes`` nodes up."""
    jobs.run(
        *("submit", "--local", "--name", name, "--nnodes", nnodes, "--nproc", str(NPROC)),
        *("--max-restarts", "1000", "--module", "ddp_trainer"),
        *("--", "train", "--task", "digits", "--epochs", "1000000", "--checkpoint-seconds", "1"),
    )
    try:
        current = int(nnodes.rpartition(":")[2])
        if nodes != current:
            jobs.run("scale", name, "--nnodes", str(nodes))
        if jobs.wait(name, ranks_have_new_step(nodes * NPROC, 0.0), timeout=GIVEN_UP) is None:
            raise CannotMeasure(f"The job {name} did not begin to train: {jobs.run('status', name)}")
        yield
    finally:
        jobs.run("delete", name, "--yes", check=False)


def recovery(jobs: LocalJobs, name: str, ranks: int, fault: Callable[[dict[int, Rank]], object]) -> float | None:
    """Seconds from the fault until every one of ``ranks`` ranks has committed a step; None after too long."""
    before = jobs.wait(name, bool, timeout=GIVEN_UP) or {}
    begun = time.time()
    fault(before)
    after = jobs.wait(name, ranks_have_new_step(ranks, begun), timeout=GIVEN_UP)
    return None if after is None else max(rank.last_step_time for rank in after.values()) - begun


def kill_last_worker(ranks: dict[int, Rank]) -> None:
    """SIGKILL the process of the highest rank."""
    os.kill(ranks[max(ranks)].pid, signal.SIGKILL)


def warm(jobs: LocalJobs, name: str) -> None:
    """Wait until the agent of the only node has a ready fork server, as it has after some seconds."""
    deadline = time.monotonic() + GIVEN_UP
    (pod,) = jobs.pods(name, Role.WORKER)
    container = jobs.container(pod["metadata"]["name"])
    while not any(is_fork_server_ready(process) for process in (container, *children(container))):
        if time.monotonic() > deadline:
            raise CannotMeasure(f"The agent of the job {name} has no fork server.")
        time.sleep(POLL_SECONDS)


def torchrun_recovery(run: Torchrun, fault: Callable[[], float], workers: int) -> float | None:
    """Return the recovery time of stock torchrun: until ``workers`` new processes have stepped."""
    before = {step.pid for step in run.steps()}
    begun = fault()
    stepped = run.wait(lambda step: step.time > begun and step.pid not in before, timeout=GIVEN_UP, workers=workers)
    return None if stepped is None else stepped - begun


def begin(run: Torchrun, workers: int) -> None:
    """Wait until stock torchrun trains."""
    if run.wait(lambda step: step.step > 1, timeout=GIVEN_UP, workers=workers) is None:
        raise CannotMeasure("Stock torchrun did not begin to train.")


def worker_killed(jobs: LocalJobs, options: Options) -> tuple[RecoveryAttempts, RecoveryAttempts]:
    """One node, two ranks: one is killed."""
    own, stock = RecoveryAttempts(), RecoveryAttempts()
    rounds, per_round = (1, 2) if options.quick else (5, 10)
    with job(jobs, "worker-killed", "1", 1):
        for number in range(rounds):
            for _ in range(per_round):
                warm(jobs, "worker-killed")
                own.add(recovery(jobs, "worker-killed", NPROC, kill_last_worker))
            if number % 2 == 0 and not options.quick:  # of those that do not recover, each takes a minute
                with torchrun(jobs.directory / f"stock-{number}", nnodes="1", nproc=NPROC, arguments=STOCK) as run:
                    begin(run, NPROC)
                    stock.add(torchrun_recovery(run, run.kill_worker, NPROC))
            options.progress(f"worker killed, round {number + 1}/{rounds}: ours {own}, stock {stock}")
    return own, stock


def script_killed(jobs: LocalJobs, options: Options) -> tuple[RecoveryAttempts, RecoveryAttempts]:
    """Kill one of two ranks of the plain script on one node; all ranks restart."""
    own, stock = RecoveryAttempts(), RecoveryAttempts()
    with torchrun(jobs.directory / "script", nnodes="1", nproc=NPROC, arguments=STOCK, launcher=OURS) as run:
        begin(run, NPROC)
        for _ in range(2 if options.quick else 50):
            _await_fork_server(run.agents[0].pid)
            own.add(torchrun_recovery(run, run.kill_worker, NPROC))
    options.progress(f"worker of a plain script killed: ours {own}")
    if options.quick:
        return own, stock
    with torchrun(jobs.directory / "stock-script", nnodes="1", nproc=NPROC, arguments=STOCK) as run:
        begin(run, NPROC)
        stock.add(torchrun_recovery(run, run.kill_worker, NPROC))
    return own, stock


def _await_fork_server(agent: int) -> None:
    deadline = time.monotonic() + GIVEN_UP
    while not is_fork_server_ready(agent):
        if time.monotonic() > deadline:
            raise CannotMeasure("The agent of the plain script has no fork server.")
        time.sleep(POLL_SECONDS)


def node_killed(jobs: LocalJobs, options: Options) -> tuple[RecoveryAttempts, RecoveryAttempts]:
    """Two nodes of ``--nnodes 1:2``: the second one's agent is killed, and every process of it dies."""
    own, stock = RecoveryAttempts(), RecoveryAttempts()
    for number in range(1 if options.quick else 2):
        with job(jobs, f"node-killed-{number}", "1:2", 2):
            for _ in range(1 if options.quick else 4):
                own.add(recovery(jobs, f"node-killed-{number}", 2 * NPROC, lambda ranks: _kill_node(jobs, ranks)))
        if not options.quick:
            with torchrun(jobs.directory / f"stock-node-{number}", nnodes="1:2", nproc=NPROC, arguments=STOCK) as run:
                run.start_agent()
                begin(run, 2 * NPROC)
                stock.add(torchrun_recovery(run, lambda: run.kill_agent(1), NPROC))
        options.progress(f"node killed, round {number + 1}: ours {own}, stock {stock}")
    return own, stock


def _kill_node(jobs: LocalJobs, ranks: dict[int, Rank]) -> None:
    os.kill(jobs.container(ranks[max(ranks)].pod), signal.SIGKILL)


def scaled_up(jobs: LocalJobs, options: Options) -> tuple[RecoveryAttempts, RecoveryAttempts]:
    """Scale from one node to two, until all four ranks step."""
    own, stock = RecoveryAttempts(), RecoveryAttempts()
    for number in range(1 if options.quick else 2):
        name = f"scaled-{number}"
        with job(jobs, name, "1:2", 1):
            for _ in range(1 if options.quick else 4):
                own.add(recovery(jobs, name, 2 * NPROC, lambda _: jobs.run("scale", name, "--nnodes", "2")))  # noqa: B023
                jobs.run("scale", name, "--nnodes", "1")
                jobs.wait(name, lambda ranks: len(ranks) == NPROC, timeout=GIVEN_UP)
        if not options.quick:
            with torchrun(jobs.directory / f"stock-scale-{number}", nnodes="1:2", nproc=NPROC, arguments=STOCK) as run:
                begin(run, NPROC)
                stock.add(torchrun_recovery(run, lambda: _start_agent(run), 2 * NPROC))
        options.progress(f"scaled up, round {number + 1}: ours {own}, stock {stock}")
    return own, stock


def _start_agent(run: Torchrun) -> float:
    begun = time.time()
    run.start_agent()
    return begun


def store_killed(jobs: LocalJobs, options: Options) -> tuple[RecoveryAttempts, RecoveryAttempts]:
    """The store dies and comes back; then a worker is killed, which needs the new store."""
    own, stock = RecoveryAttempts(), RecoveryAttempts()
    for number in range(1 if options.quick else 2):
        name = f"store-killed-{number}"
        with job(jobs, name, "1:2", 2):
            for _ in range(1 if options.quick else 4):
                store = jobs.pods(name, Role.STORE)[0]["metadata"]["name"]
                os.kill(jobs.container(store), signal.SIGKILL)
                own.add(recovery(jobs, name, 2 * NPROC, kill_last_worker))
        if not options.quick:
            with torchrun(jobs.directory / f"stock-store-{number}", nnodes="1:2", nproc=NPROC, arguments=STOCK) as run:
                run.start_agent()
                begin(run, 2 * NPROC)
                # The store of stock torchrun lives in the first agent, and goes with it.
                stock.add(torchrun_recovery(run, lambda: run.kill_agent(0), NPROC))
        options.progress(f"store killed, round {number + 1}: ours {own}, stock {stock}")
    return own, stock


CASES: Final = {
    "worker_killed": (worker_killed, 0.5),
    "script_killed": (script_killed, 0.5),
    "node_killed": (node_killed, 12.0),
    "scaled_up": (scaled_up, 8.0),
    "store_killed": (store_killed, 12.0),
}
"""Fault, and the most seconds that its median may take."""
PARTS: Final = (*CASES, *replicas.PARTS, *agent_recovery.PARTS)


def measure(options: Options) -> Report:
    """Every fault on both launchers."""
    report = Report()
    parts = options.parts(PARTS)
    if options.quick and not options.only:
        parts = [name for name in parts if name not in agent_recovery.OTHERS]
        options.progress("--quick leaves out torchrun and torchft, and injects each fault once or twice.")
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        for name, (case, bar) in ((name, CASES[name]) for name in parts if name in CASES):
            jobs = LocalJobs(Path(directory) / name)
            own, stock = case(jobs, options)
            summary = report.figure(f"{name}_seconds", own.seconds)
            report.figure(f"{name}_recovered_ratio", own.share)
            if stock.count:
                report.baseline(f"stock_{name}_recovered_ratio", stock.share)
            if stock.seconds:
                report.baseline(f"stock_{name}_seconds", stock.seconds)
            report.at_most(f"median seconds, {name.replace('_', ' ')}", summary.median, bar)
            report.at_least(f"share of {own.count} recovered, {name.replace('_', ' ')}", own.share, 1.0)
        chosen = [name for name in parts if name in replicas.PARTS]
        replicas.measure(Path(directory) / "replicas", report, options, chosen)
        agent_recovery.measure(
            Path(directory) / "reform", report, options, [name for name in parts if name in agent_recovery.PARTS]
        )
    return report
