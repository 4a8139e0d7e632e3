"""One of four ranks that hold two replicas of a model in two parts each is killed, at random moments.

The others keep their processes and their pieces; what the killed one had comes from the rank of the other replica that
holds the same. The sample tracker of the run shows that no sample was lost or repeated; its summary has the result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.drivers.fork_server import is_fork_server_ready, workers
from bench.drivers.jobs import ROOT
from bench.drivers.two_agent_job import FORK_SERVER_SECONDS, GIVEN_UP, POLL_SECONDS, TRAIN, StepLog
from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.constants import Env

_TEXT: Final = (
    *("-m", "ddp_trainer", "train", "--task", "bench.workloads.layouts:LargeNumbers"),
    *("--global-batch", "8", "--epochs", "1000000"),
    *("--checkpoint-seconds", "1", "--log-json", "--log-steps", "1"),
)
"""A GPT, which has its own plan for the division."""
CASES: Final = {
    "worker_killed_sharded": ("replicate=2,shard=2", TRAIN),
    "worker_killed_sliced": ("replicate=2,tp=2", _TEXT),
    "worker_killed_staged": ("replicate=2,pp=2", _TEXT),
}
"""The layout, and what learns."""
PARTS: Final = tuple(CASES)
RANKS: Final = 4
BAR_SECONDS: Final = 3.0
"""The most that the slowest recovery may take."""
_LATEST_SECONDS: Final = 2.0
"""Longest time from a recovery to the next kill."""
_FIGURES: Final = {"samples_lost": "lost_samples", "samples_repeated": "repeated_samples", "lost_steps": "lost_steps"}
"""Figures of the summary, by the ends of their names here. All of them must be 0."""
_MOST_STEPS: Final = 3


def measure(directory: Path, report: Report, options: Options, parts: Sequence[str]) -> None:
    """Measure these :data:`PARTS`: kill, time the next committed step, and check the sample tracker at the end."""
    for name in parts:
        _measure(name, directory / name, report, options)


def _measure(name: str, directory: Path, report: Report, options: Options) -> None:
    layout, program = CASES[name]
    directory.mkdir(parents=True)
    run, rounds = _Run(directory, layout, program), 1 if options.quick else 20
    seconds = []
    try:
        run.await_steps()
        for number in range(1, rounds + 1):
            taken = run.kill_one(options)
            seconds += [] if taken is None else [taken]
            text = "never" if taken is None else f"{taken:.2f} s"
            options.progress(f"one of {RANKS} ranks killed, {layout}, seed {options.seed}, {number}/{rounds}: {text}")
        summary = run.end()
    finally:
        run.kill()
    times = report.figure(f"{name}_seconds", seconds)
    report.figure(f"{name}_recovered_ratio", len(seconds) / rounds)
    report.at_least(f"share of {rounds} recovered, worker killed, {layout}", len(seconds) / rounds, 1.0)
    report.at_most(f"most seconds, worker killed, {layout}", times.maximum, BAR_SECONDS)
    for key, figure in _FIGURES.items():
        report.figure(f"{name}_{figure}", summary[key])
        report.at_most(f"{key.replace('_', ' ')}, worker killed, {layout}", summary[key], 0)


class _Run:
    """One node of four ranks."""

    def __init__(self, directory: Path, layout: str, program: Sequence[str]) -> None:
        self._layout = layout
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "DDP_FORK_SERVER": FORK_SERVER_SECONDS,
            Env.CHECKPOINT_DIR: str(directory / "checkpoints"),
            Env.RUN_DIR: str(directory),
        }
        launch = (sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", str(RANKS))
        self._agent = subprocess.Popen(
            [*launch, "--max-restarts", "1000", *program, "--parallel", layout],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            text=True,
        )
        self._log = StepLog()
        assert self._agent.stdout is not None
        self._reader = threading.Thread(target=self._log.listen, args=(self._agent.stdout,), daemon=True)
        self._reader.start()

    def await_steps(self) -> None:
        """Return when it trains. Raises CannotMeasure."""
        if self._wait(lambda: len(self._log.steps) > _MOST_STEPS) is None:
            raise CannotMeasure(f"Four ranks do not train as {self._layout}: {''.join(self._log.other[-3:])}")

    def kill_one(self, options: Options) -> float | None:
        """SIGKILL a rank at a random moment: seconds until the next group has committed a step, None if it never did.

        Wait for the fork server first, because an agent has one after some seconds.
        """
        if self._wait(lambda: is_fork_server_ready(self._agent.pid) and len(workers(self._agent.pid)) == RANKS) is None:
            raise CannotMeasure("The agent has no fork server.")
        time.sleep(options.random.uniform(0, _LATEST_SECONDS))  # the moment is what is varied
        victim = options.random.choice(workers(self._agent.pid))
        group, begun = self._log.steps[-1].group, time.time()
        os.kill(victim, signal.SIGKILL)
        stepped = self._wait(lambda: next((step.time for step in self._log.steps if step.group > group), None))
        return None if stepped is None else stepped - begun

    def end(self) -> dict[str, Any]:
        """Stop the agent, and return the summary of its run. Raises CannotMeasure."""
        self._agent.terminate()
        self._agent.wait(GIVEN_UP)
        self._reader.join(GIVEN_UP)
        for line in self._log.other:
            if '"event": "summary"' in line:
                return dict(json.loads(line)["summary"])
        raise CannotMeasure(f"The run printed no summary: {''.join(self._log.other[-3:])}")

    def kill(self) -> None:
        """Kill the agent in any state."""
        self._agent.kill()
        self._agent.wait()

    def _wait(self, found: Callable[[], Any]) -> Any:
        """Wait for a result and return it; None after a timeout, or if all processes have ended."""
        deadline = time.monotonic() + GIVEN_UP
        while time.monotonic() < deadline and self._agent.poll() is None:
            if it := found():
                return it
            time.sleep(POLL_SECONDS)
        return None
