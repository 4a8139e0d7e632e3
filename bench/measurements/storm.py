"""Random faults in a job of four ranks, without manual action, compared with stock torchrun under the same faults.

Every ten seconds for ten minutes a fault hits a random rank, the store or an agent. ``STORM_FAULTS`` sets another
number of faults, as 2000, ``STORM_SECONDS`` another interval, as 3, and ``BENCH_STATE_MB`` a larger state, as 100. With
at least ten faults, the resource usage of the job's processes is also compared. ``--only ours`` leaves stock torchrun
out, and ``stock`` ours.

Ours trains at the level ``exact``, so that the bits show any effect of the storm: at the end, a single
process takes as many steps without faults, and must have the same weights and optimizer. A lost or a repeated sample
would show there. The run's sample tracker counts them as well.

Goodput is the work that was kept, in steps of full size, over what the same job does in that time at its calm rate.
The local engine recreates our pods. The measurement restarts a lost agent of stock torchrun, as its operator
would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from bench.drivers.fork_server import children
from bench.drivers.jobs import ROOT, LocalJobs, Rank, ranks_have_new_step
from bench.drivers.resource_usage import UsageSampler
from bench.harness import CannotMeasure, Options, Report
from bench.peers.torchrun_driver import Torchrun, torchrun
from bench.scripts.growing_task import STATE_MEGABYTES
from bench.scripts.storm_faults import ORDERS, VARIABLE
from ddp_trainer.common.constants import Env, Role
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, directories, read, unpack
from ddp_trainer.train.data.batch_reader import sha256

SUMMARY = "goodput, samples lost and bits kept under one random fault every ten seconds, beside stock torchrun"

EVERY_SECONDS: Final = float(os.environ.get("STORM_SECONDS", "10"))
CALM_SECONDS: Final = 10.0
STOCK_FAULTS: Final = 12
"""Stock torchrun seldom outlives the first; more of them would only take time."""
PATIENCE_SECONDS: Final = 60.0
NAME: Final = "storm"
PARTS: Final = ("ours", "stock")
NODES: Final = 2
NPROC: Final = 2
HANGS: Final = ("--env", f"{Env.ON_HANG}=act", "--env", f"{Env.HANG_FLOOR}=2")
"""The group waits for a hanging rank for at most the learned limit, or two seconds."""
TRAIN: Final = (
    *("train", "--task", "bench.scripts.storm_task:StormyDigits", "--epochs", "1000000"),
    *("--level", "exact", "--batch-slices", "4", "--global-batch", "64"),
    *("--schedule", "constant"),  # others depend on how many steps are planned
)


class Fault(StrEnum):
    """Fault of a rank, its agent or the store."""

    KILLED = "sigkill"
    TERMINATED = "sigterm"
    STOPPED = "sigstop"
    EXCEPTION = "exception"
    GIL_HELD = "gil_held"
    EXIT_0 = "exit_0"
    STORE_KILLED = "store_killed"
    AGENT_KILLED = "agent_killed"


SIGNALS: Final = {Fault.KILLED: signal.SIGKILL, Fault.TERMINATED: signal.SIGTERM, Fault.STOPPED: signal.SIGSTOP}


class FaultTarget(Protocol):
    """A job that faults can be done to."""

    def inject_fault(self, fault: Fault, options: Options) -> None:
        """Do it."""

    def step(self) -> int:
        """The last step that is done, of full size; it falls when steps were lost."""


def send_order(letters: Path, pid: int, fault: Fault) -> None:
    """Have a process do something to itself; the letter is there whole or not at all."""
    draft = letters / f".{pid}"
    draft.write_text(str(fault))
    draft.rename(letters / str(pid))


def inject_process_fault(pid: int, fault: Fault, letters: Path) -> None:
    """Let a fault befall one process."""
    if fault in ORDERS:
        send_order(letters, pid, fault)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNALS[fault])


@dataclass(slots=True)
class LocalTrainerJob:
    """A local job of the reference trainer."""

    jobs: LocalJobs
    letters: Path
    last: int = 0

    def inject_fault(self, fault: Fault, options: Options) -> None:
        """See :class:`FaultTarget`."""
        if fault is Fault.STORE_KILLED:
            self._kill_pod(self.jobs.pods(NAME, Role.STORE)[0])
        elif fault is Fault.AGENT_KILLED:
            self._kill_pod(options.random.choice(self.jobs.pods(NAME, Role.WORKER)))
        elif ranks := self.jobs.ranks(NAME):
            inject_process_fault(options.random.choice(sorted(ranks.values(), key=_number)).pid, fault, self.letters)

    def _kill_pod(self, pod: dict[str, Any]) -> None:
        with contextlib.suppress(CannotMeasure, ProcessLookupError):  # it may be down already
            os.kill(self.jobs.container(pod["metadata"]["name"]), signal.SIGKILL)

    def step(self) -> int:
        """See :class:`FaultTarget`."""
        self.last = max((rank.step for rank in self.jobs.ranks(NAME).values()), default=self.last)
        return self.last


def _number(rank: Rank) -> int:
    return rank.rank


@dataclass(slots=True)
class TorchrunBaseline:
    """The plain script under torch's own launcher; its store lives in the first agent."""

    run: Torchrun
    letters: Path

    def inject_fault(self, fault: Fault, options: Options) -> None:
        """See :class:`FaultTarget`."""
        if fault is Fault.STORE_KILLED:
            self._replace(0)
        elif fault is Fault.AGENT_KILLED:
            self._replace(options.random.randrange(NODES))
        elif workers := [worker for agent in self.run.agents for worker in children(agent.pid)]:
            inject_process_fault(options.random.choice(workers), fault, self.letters)
        for number, agent in enumerate(self.run.agents):
            if agent.poll() is not None:
                self._replace(number)

    def _replace(self, number: int) -> None:
        self.run.kill_agent(number)
        self.run.start_agent(number)

    def step(self) -> int:
        """Its global batch grows and shrinks with the world, so a step of half a world counts as half."""
        worlds = {step.step: step.world for step in self.run.steps()}
        newest = self.run.steps()[-1].step if worlds else 0
        return sum(world for step, world in worlds.items() if step <= newest) // (NODES * NPROC)


@dataclass(slots=True)
class StormResult:
    """Result of a storm."""

    calm_rate: float
    """Steps a second before it."""
    goodput: float
    faults: int = 0
    stood_still: dict[Fault, int] = field(default_factory=dict)
    """Fault → how often no step was done until the next one was due."""


def run_storm(
    job: FaultTarget, faults: int, options: Options, who: str, footprints: UsageSampler | None = None
) -> StormResult:
    """Let it storm."""
    first = job.step()
    time.sleep(CALM_SECONDS)  # a rate needs time, not an event
    before, begun = job.step(), time.monotonic()
    course = StormResult(calm_rate=(before - first) / CALM_SECONDS, goodput=0.0)
    for number in range(1, faults + 1):
        fault = options.random.choice(list(Fault))
        job.inject_fault(fault, options)
        after = job.step()
        time.sleep(max(0.0, begun + number * EVERY_SECONDS - time.monotonic()))
        step = job.step()
        if footprints:
            footprints.sample()
        course.faults = number
        if step <= after:
            course.stood_still[fault] = course.stood_still.get(fault, 0) + 1
        options.progress(f"{who} {number}/{faults}: {fault}, step {after} -> {step}")
    done = (job.step() - before) / (time.monotonic() - begun)
    course.goodput = done / course.calm_rate if course.calm_rate else 0.0
    return course


@contextlib.contextmanager
def trainer_job(directory: Path) -> Iterator[LocalTrainerJob]:
    """The job, until every rank of it trains, and its end."""
    jobs, letters = LocalJobs(directory / "state"), directory / "letters"
    letters.mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    jobs.run(
        *("submit", "--local", "--name", NAME, "--nnodes", f"1:{NODES}", "--nproc", str(NPROC)),
        *("--max-restarts", "10000", "--env", f"{VARIABLE}={letters}", "--env", f"PYTHONPATH={path}"),
        *("--env", f"{STATE_MEGABYTES}={os.environ.get(STATE_MEGABYTES, '0')}"),
        *HANGS,
        *("--module", "ddp_trainer", "--", *TRAIN, "--checkpoint-seconds", "1"),
        *("--checkpoint-dir", str(directory / "checkpoints"), "--checkpoint-scope", "job"),
    )
    try:
        if jobs.wait(NAME, ranks_have_new_step(NODES * NPROC, 0.0), timeout=PATIENCE_SECONDS) is None:
            raise CannotMeasure(f"The job did not begin to train: {jobs.run('logs', NAME, check=False)}")
        yield LocalTrainerJob(jobs, letters)
    finally:
        jobs.run("delete", NAME, "--yes", check=False)


def reference_checkpoint(directory: Path, steps: int) -> Checkpoint:
    """Return the checkpoint of one process after as many steps without faults."""
    command = [sys.executable, "-m", "ddp_trainer", *TRAIN, "--max-steps", str(steps), "--checkpoint-dir"]
    calm = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([*command, str(directory)], cwd=ROOT, env=calm, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"The undisturbed run ended with {done.returncode}: {done.stderr.strip()}")
    return read(next(directories(directory)))


def measure(options: Options) -> Report:
    """Ours, then stock torchrun."""
    report = Report()
    faults = int(os.environ.get("STORM_FAULTS", "6" if options.quick else "60"))
    parts = options.parts(PARTS)
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        if "ours" in parts:
            _measure_trainer(Path(directory) / "ours", faults, report, options)
        if "stock" in parts:
            _measure_torchrun(Path(directory) / "stock", min(faults, STOCK_FAULTS), report, options)
    return report


def _measure_trainer(directory: Path, faults: int, report: Report, options: Options) -> None:
    with trainer_job(directory) as job:
        footprints = UsageSampler(f"XDG_STATE_HOME={job.jobs.directory}")
        course = run_storm(job, faults, options, "ours", footprints)
        struck = time.time()
        steps_again = job.jobs.wait(
            NAME, lambda ranks: any(r.last_step_time > struck for r in ranks.values()), timeout=PATIENCE_SECONDS
        )
        job.jobs.run("suspend", NAME)
        job.jobs.run("wait", NAME, "--for=suspended", "--timeout=60s", check=False)
    stormy = read(next(directories(directory / "checkpoints")))
    options.progress(f"one process does the {stormy.manifest.step} steps undisturbed")
    calm = reference_checkpoint(directory / "calm", stormy.manifest.step)
    ledger = unpack(stormy)["ledger"]
    _record_result(report.figure, "", course)
    if len(footprints.samples) >= 10:
        footprints.report_growth(report)
    report.at_least("jobs that train after the storm, without help", float(steps_again is not None), 1)
    report.at_most("samples lost", ledger["lost"], 0)
    report.at_most("samples repeated", ledger["repeated"], 0)
    same = _bits(stormy) == _bits(calm)
    report.at_least("runs whose weights and optimizer have the bits of an undisturbed one", float(same), 1)


def _bits(checkpoint: Checkpoint) -> str:
    state = unpack(checkpoint)
    return sha256([state["model"], state["optimizer"]])


def _measure_torchrun(directory: Path, faults: int, report: Report, options: Options) -> None:
    letters = directory / "letters"
    letters.mkdir(parents=True)
    os.environ[VARIABLE] = str(letters)
    try:
        with torchrun(directory / "run", nnodes=f"1:{NODES}", nproc=NPROC, arguments=("--max-restarts=10000",)) as run:
            run.start_agent()
            if run.wait(lambda step: step.step > 1, timeout=PATIENCE_SECONDS, workers=NODES * NPROC) is None:
                raise CannotMeasure("Stock torchrun did not begin to train.")
            _record_result(
                report.baseline, "stock_", run_storm(TorchrunBaseline(run, letters), faults, options, "stock")
            )
    finally:
        del os.environ[VARIABLE]


def _record_result(put: Callable[[str, float], object], prefix: str, course: StormResult) -> None:
    put(f"{prefix}goodput_ratio", course.goodput)
    put(f"{prefix}faults_count", float(course.faults))
    put(f"{prefix}stood_still_until_the_next_fault_count", float(sum(course.stood_still.values())))
