"""Faults of a run of the task ``Sums`` on several nodes, one rank each, and what they come to."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.check_runner import ROOT, environment
from bench.gpu_checks.launches import PYTHON, TASKS, TRAIN, Nodes, checkpoint_weights, kill_worker, train_single_rank
from bench.gpu_checks.tasks import PAUSE, SUMS_FLAGS
from bench.harness import CannotMeasure

PAUSE_SECONDS: Final = 0.02
"""Pause of a step on a GPU. In a rehearsal it is five times as long, so that other processes can use the processors."""
START_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 40.0
FAULTS: Final = ("killed", "left", "stopped")
QUICKEST: Final = "killed"
"""Fault with the fastest recovery. The group of the survivors ends by agreement when the rank is back."""
HANG_FLOOR_SECONDS: Final = 3


@dataclass(slots=True)
class RecoveryStats:
    """Recovery times and counts over all faults of a run."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Fault → seconds until all ranks committed a step again."""
    tries: int = 0
    recovered: int = 0
    kept: int = 0
    """Faults after which the first survivor had the process that it had before."""
    left: int = 0
    """Nodes that left by SIGTERM, and came back."""
    agreed: int = 0
    """Groups that all their ranks left together, since a node came or left."""
    last_words: str = ""

    def add(self, fault: str, begun: float, stepped: float | None, *, kept: bool) -> None:
        """Take down one fault."""
        self.tries += 1
        if stepped is not None:
            self.recovered += 1
            self.kept += kept
            self.left += fault == "left"
            self.seconds.setdefault(fault, []).append(stepped - begun)


def pause_seconds(bench: Bench) -> float:
    """Return the pause of each step, in seconds."""
    return PAUSE_SECONDS if bench.is_gpu else 5 * PAUSE_SECONDS


def nodes_of(
    bench: Bench, name: str, backend: str, more: tuple[str, ...], variables: dict[str, str], count: int
) -> Nodes:
    """Return nodes, not started, that train ``Sums`` until SIGTERM."""
    flags = ("--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--device", bench.device, "--backend", backend)
    endless = ("--epochs", "1000000", "--checkpoint-seconds", "2", "--log-json")
    return Nodes(
        bench.folder(name),
        (*TRAIN, *flags, *endless, *more),
        least=1,
        most=count,
        variables=variables | {PAUSE: str(pause_seconds(bench)), "DDP_HANG_FLOOR": str(HANG_FLOOR_SECONDS)},
        flags=("--on-hang", "act"),
    )


def inject_faults(bench: Bench, nodes: Nodes, end: float, *, seed: int, most: int, agreed: int = 0) -> RecoveryStats:
    """Let faults happen to the second node at random moments of a step, one after the other, until ``end``.

    Each fault comes once; then the quickest until there were ``agreed`` regroups that all ranks agreed on; then all.

    Raises:
        CannotMeasure: The undisturbed nodes do not train.
    """
    outcomes, chance = RecoveryStats(), random.Random(seed)
    begun = time.monotonic()
    patience = min(bench.timeout_factor * START_SECONDS, end - begun)
    if nodes.wait_for_step(begun, patience, world=nodes.most, steps=30) is None:
        raise CannotMeasure(f"{nodes.most} ranks do not train: {nodes.tail()}")
    for number in range(most):
        if time.monotonic() > end:
            break
        fault = FAULTS[number % len(FAULTS)] if number < len(FAULTS) or outcomes.agreed >= agreed else QUICKEST
        before = nodes.agents[0].worker()
        time.sleep(chance.uniform(0, 4 * pause_seconds(bench)))  # the moment within a step is what is varied
        struck = time.monotonic()
        inject_fault(nodes, fault, bench.timeout_factor * RECOVERY_SECONDS)
        stepped = nodes.wait_for_step(struck, bench.timeout_factor * RECOVERY_SECONDS, world=nodes.most, steps=5)
        outcomes.add(fault, struck, stepped, kept=before == nodes.agents[0].worker())
        outcomes.agreed = count_scale_ups(nodes.agents[0].output) + outcomes.left
        if stepped is None:
            outcomes.last_words = nodes.tail()
            break
    return outcomes


def inject_fault(nodes: Nodes, fault: str, seconds: float) -> None:
    """Let one fault happen to the second node; one that leaves may take so many seconds."""
    if fault == "killed":
        kill_worker(nodes.agents[1])
    elif fault == "stopped":
        pid = kill_worker(nodes.agents[1], signal.SIGSTOP)
        if pid is None:
            raise CannotMeasure("the second node has no worker to stop")
    else:
        nodes.agents[1].signal(signal.SIGTERM)
        nodes.agents[1].wait(seconds)
        nodes.start_agent(1)


def count_scale_ups(output: str) -> int:
    r"""Return how often a group ended for a node that came, by the launcher's output on a node that stayed.

    >>> count_scale_ups("generation 1: 2 workers, node 0\ngeneration 2: 1 worker, node 0\ngeneration 3: 2 workers, n")
    1
    """
    sizes = [int(size) for size in re.findall(r"generation \d+: (\d+) worker", output)]
    return sum(after > before for before, after in pairwise(sizes))


def report_results(bench: Bench, name: str, nodes: Nodes, outcomes: RecoveryStats, *, stays: bool, agreed: int) -> None:
    """Turn outcomes into figures and bars, and end the run.

    Args:
        bench: The check.
        name: Of the run.
        nodes: That were disturbed.
        outcomes: Of the faults.
        stays: Survivors are to keep their processes.
        agreed: Least number of agreed regroups, 0 for any.
    """
    found = bench.findings
    for fault, seconds in outcomes.seconds.items():
        found.figure(f"{name}_{fault}_until_all_step_seconds", seconds)
    found.add(f"{name}_kept_ratio", share(outcomes.kept, outcomes))
    found.add(f"{name}_agreed_regroups_count", outcomes.agreed)
    if outcomes.last_words:
        found.mark_unsupported(f"{name}: after a fault that was not recovered", outcomes.last_words)
    found.at_least(
        f"{name}: share of {outcomes.tries} faults that were recovered", share(outcomes.recovered, outcomes), 1
    )
    if stays:
        found.at_least(f"{name}: share of survivors that kept their process", share(outcomes.kept, outcomes), 1)
    if agreed:
        found.at_least(f"{name}: regroups that all ranks agreed on", outcomes.agreed, agreed)
    codes = nodes.stop(bench.timeout_factor * RECOVERY_SECONDS)
    found.at_most(f"{name}: agents that did not stop in good order", sum(code != 143 for code in codes), 0)


def share(count: int, outcomes: RecoveryStats) -> float:
    """Return the part of all faults; 0 where there was none."""
    return count / outcomes.tries if outcomes.tries else 0.0


def compare_weights(bench: Bench, name: str, nodes: Nodes) -> tuple[int, int]:
    """Return how many weights have other bits than after as many undisturbed steps of one process on the CPU, and the
    number of these steps.
    """
    steps = max(step for _, step, _ in nodes.committed_steps())
    saved = nodes.directory / "checkpoints"
    ours = checkpoint_weights(saved, bench.directory / f"{name}.pt")
    step = latest_checkpoint_step(saved)
    if step < steps:
        raise CannotMeasure(f"the newest checkpoint is of step {step}, and step {steps} was committed")
    alone = bench.directory / f"{name}-alone"
    train_single_rank(
        *("--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--device", "cpu", "--max-steps", str(step), "--epochs", "1000000"),
        *("--checkpoint-dir", str(alone), "--checkpoint-seconds", "inf"),
        seconds=bench.seconds_left + START_SECONDS,
    )
    theirs = checkpoint_weights(alone, bench.directory / f"{name}-alone.pt")
    return sum(int((ours[key].cpu() != theirs[key]).sum()) for key in theirs), step


def latest_checkpoint_step(directory: Path) -> int:
    """Return the step of the newest checkpoint, by ``ddp_trainer checkpoint inspect``."""
    command = [PYTHON, "-m", "ddp_trainer", "checkpoint", "inspect", str(directory), "-o", "json"]
    told = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    return max((int(each["step"]) for each in json.loads(told.stdout)), default=0)
