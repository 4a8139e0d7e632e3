"""Faults of a run of the task ``Sums`` on several nodes, one rank each, and what they come to."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.check_runner import ROOT, environment
from bench.gpu_checks.launches import PYTHON, TASKS, TRAIN, Nodes, checkpoint_weights, train_single_rank
from bench.gpu_checks.probe import query_nvidia_smi
from bench.gpu_checks.rank_metrics import scrape
from bench.gpu_checks.tasks import PAUSE, SUMS_FLAGS
from bench.harness import CannotMeasure
from ddp_trainer.common.metric_names import Metric

PAUSE_SECONDS: Final = 0.02
"""Pause of a step on a GPU. In a rehearsal it is five times as long, so that other processes can use the processors."""
START_SECONDS: Final = 60.0
RECOVERY_SECONDS: Final = 40.0
FAULTS: Final = ("killed", "killed", "left", "stopped")
"""Faults that come first; the first of them, which recovers fastest, is repeated until the time is up."""
HANG_FLOOR_SECONDS: Final = 3
END_SECONDS: Final = 12.0
"""Time to stop the run and to repeat its steps undisturbed."""
LAST_FAULT_SECONDS: Final = 12.0
"""Time that a fault has at least: a restarted worker imports torch and makes a CUDA context."""
CHECKPOINT_SECONDS: Final = 2.0
NAMING_SECONDS: Final = 15.0
NAMED: Final = "hang: rank 1 on worker-1 is stopped by a signal"
"""Beginning of the launcher's message about a rank that got SIGSTOP."""
MOST_GROWTH: Final = {"threads": 4, "descriptors": 4, "device_bytes": 300e6}
"""Limit of what a process may take in addition over all its groups."""
WATCHDOG: Final = re.compile("watchdog thread terminated|Terminating the process")
"""Words of torch when it ends a process."""
SOCKETS: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_DEBUG": "WARN",
}
"""Variables with which NCCL connects the nodes by sockets, as hosts with one GPU each.

It refuses two ranks on one GPU of one host. The nodes have different values of ``NCCL_HOSTID``. This shows nothing of
NVLink, NVLS or InfiniBand, or of how long anything takes there.

Source: NCCL, src/init.cc (duplicate GPUs) and src/misc/utils.cc (``getHostHash``).
"""


@dataclass(slots=True)
class RecoverySummary:
    """Recovery times and counts over all faults of a run."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Fault → seconds until all ranks committed a step again."""
    tries: int = 0
    recovered: int = 0
    survived: int = 0
    """Killed ranks after which the survivor had the process that it had before."""
    killed: int = 0
    naming_seconds: list[float] = field(default_factory=list)
    """Seconds until the hang watch named a stopped rank, one for each that it named."""
    repeated: list[int] = field(default_factory=list)
    """Committed steps that each fault repeated, beyond those of one checkpoint interval."""
    growth: dict[str, float] = field(default_factory=dict)
    """Additional memory of the first node's worker after all faults, if its process is the first."""
    last_words: str = ""

    def add(self, fault: str, begun: float, stepped: float | None, *, survived: bool) -> None:
        """Take down one fault."""
        self.tries += 1
        if stepped is not None:
            self.recovered += 1
            self.killed += fault == "killed"
            self.survived += survived and fault == "killed"
            self.seconds.setdefault(fault, []).append(stepped - begun)


def pause_seconds(bench: Bench) -> float:
    """Return the pause of each step, in seconds."""
    return PAUSE_SECONDS if bench.is_gpu else 5 * PAUSE_SECONDS


def nodes_of(
    bench: Bench,
    name: str,
    backend: str,
    more: tuple[str, ...],
    variables: dict[str, str],
    count: int,
    *,
    least: int = 1,
) -> Nodes:
    """Return nodes, not started, that train ``Sums`` until SIGTERM."""
    flags = ("--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--device", bench.device, "--backend", backend)
    endless = ("--epochs", "1000000", "--checkpoint-seconds", f"{CHECKPOINT_SECONDS:g}", "--log-json")
    return Nodes(
        bench.folder(name),
        (*TRAIN, *flags, *endless, *more),
        least=least,
        most=count,
        variables=variables | {PAUSE: str(pause_seconds(bench)), "DDP_HANG_FLOOR": str(HANG_FLOOR_SECONDS)},
        flags=("--on-hang", "act"),
    )


def inject_faults(bench: Bench, nodes: Nodes, end: float, *, most: int) -> RecoverySummary:
    """Let faults happen to the second node at random moments of a step, one after the other, until ``end``.

    Args:
        bench: The check.
        nodes: Two nodes that train.
        end: Time by ``time.monotonic`` after which no fault starts.
        most: Largest number of faults.

    Raises:
        CannotMeasure: The undisturbed nodes do not train.
    """
    outcomes, chance = RecoverySummary(), random.Random(0)
    first: dict[str, float] = {}
    begun = time.monotonic()
    timeout = min(bench.timeout_factor * START_SECONDS, end - begun)
    if nodes.wait_for_step(begun, timeout, world=nodes.most, steps=30) is None:
        raise CannotMeasure(f"{nodes.most} ranks do not train: {nodes.tail()}")
    for number in range(most):
        if time.monotonic() > end:
            break
        faults = FAULTS[1:] if bench.is_small else FAULTS
        fault = faults[number] if number < len(faults) else faults[0]
        before = nodes.agents[0].worker()
        first = first or resources(bench, before)
        time.sleep(chance.uniform(0, 4 * pause_seconds(bench)))  # the moment within a step is what is varied
        struck = time.monotonic()
        timeout = min(bench.timeout_factor * RECOVERY_SECONDS, bench.seconds_left - END_SECONDS)
        inject_fault(nodes, fault, timeout)
        stepped = nodes.wait_for_step(struck, timeout, world=nodes.most, steps=5)
        outcomes.add(fault, struck, stepped, survived=before == nodes.agents[0].worker())
        if stepped is None:
            outcomes.last_words = nodes.tail()
            break
        if fault == "stopped":
            named = [
                line.time - struck for agent in nodes.agents.values() for line in agent.lines if NAMED in line.text
            ]
            outcomes.naming_seconds += [seconds for seconds in named if seconds > 0][:1]
        outcomes.repeated.append(repeated_steps(nodes, struck))
    last = resources(bench, nodes.agents[0].worker())
    outcomes.growth = {thing: last[thing] - first[thing] for thing in MOST_GROWTH if thing in first and thing in last}
    return outcomes


def repeated_steps(nodes: Nodes, struck: float) -> int:
    """Return how many steps older than one checkpoint interval were committed again after a fault at this time."""
    steps = nodes.committed_steps()
    next_step = next((step for when, step, _ in steps if when > struck), 0)
    return sum(step >= next_step for when, step, _ in steps if when < struck - CHECKPOINT_SECONDS - 1.0)


def resources(bench: Bench, pid: int | None) -> dict[str, float]:
    """Return what a process holds; nothing where it has ended."""
    try:
        threads, files = (len(list(Path(f"/proc/{pid}/{folder}").iterdir())) for folder in ("task", "fd"))
    except OSError:
        return {}
    used = query_nvidia_smi("memory.used") if bench.is_gpu else []  # of all processes: their number stays the same
    return {"threads": threads, "descriptors": files} | ({"device_bytes": float(used[0]) * 2**20} if used else {})


def inject_fault(nodes: Nodes, fault: str, seconds: float) -> None:
    """Let one fault happen to the second node; one that leaves may take so many seconds."""
    if fault in {"killed", "stopped"}:
        series, _ = scrape(nodes.metrics_ports[1], rank=1)  # the environment of a forked worker does not tell its rank
        if not (pid := int(series.get(Metric.RANK_PID, 0))):
            raise CannotMeasure(f"the second node has no worker: {nodes.tail()}")
        os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    else:
        nodes.agents[1].signal(signal.SIGTERM)
        nodes.agents[1].wait(seconds)
        nodes.start_agent(1)


def report_results(bench: Bench, name: str, nodes: Nodes, outcomes: RecoverySummary, *, remains: bool) -> None:
    """Turn outcomes into figures and bars, and end the run.

    Args:
        bench: The check.
        name: Of the run.
        nodes: That were disturbed.
        outcomes: Of the faults.
        remains: Survivors of a killed rank are to keep their processes.
    """
    found = bench.findings
    for fault, seconds in outcomes.seconds.items():
        found.figure(f"{name}_{fault}_until_all_step_seconds", seconds)
    found.add(f"{name}_faults_count", outcomes.tries)
    if outcomes.last_words:
        found.details[f"{name}: after a fault that was not recovered"] = outcomes.last_words
    recovered = outcomes.recovered / outcomes.tries if outcomes.tries else 0.0
    found.at_least(f"{name}: share of {outcomes.tries} faults that were recovered", recovered, 1)
    if remains:
        survived = outcomes.survived / outcomes.killed if outcomes.killed else 0.0
        found.at_least(f"{name}: share of survivors of a killed rank that kept their process", survived, 1)
        for thing, grown in outcomes.growth.items():
            found.at_most(f"{name}: {thing.replace('_', ' ')} more after all faults", grown, MOST_GROWTH[thing])
        output = "\n".join(agent.output for agent in [*nodes.ended, *nodes.agents.values()])
        found.at_most(f"{name}: processes that torch's watchdog has ended", len(WATCHDOG.findall(output)), 0)
    else:
        found.at_most(f"{name}: steps repeated beyond one checkpoint interval", max(outcomes.repeated, default=0), 0)
    stopped = len(outcomes.seconds.get("stopped", ()))
    found.at_least(
        f"{name}: stopped ranks that the hang watch named, of {stopped}", len(outcomes.naming_seconds), stopped
    )
    for seconds in outcomes.naming_seconds:
        found.at_most(f"{name}: seconds until a stopped rank was named", seconds, NAMING_SECONDS)
    codes = nodes.stop(max(bench.seconds_left, 5.0))
    found.at_most(f"{name}: agents that did not stop in good order", sum(code != 143 for code in codes), 0)
    causes = next((event["summary"]["restarts"] for _, event in nodes.agents[0].events("summary")), {})
    found.details[f"{name}: restarts by cause"] = json.dumps(causes)
    if not remains:  # a survivor's group may count the same loss as a change of membership
        found.at_least(f"{name}: killed ranks that count as failures", causes.get("failure", 0), outcomes.killed)
        found.at_least(f"{name}: stopped ranks that count as hangs", causes.get("hang", 0), stopped)


def measure_node_failures(bench: Bench, name: str, flags: tuple[str, ...], *, remains: bool) -> None:
    """Train on two nodes, let faults happen until the time is up, and compare the weights with undisturbed ones.

    Args:
        bench: The check.
        name: Of the run, for figures and bars.
        flags: More flags of the trainer.
        remains: Survivors of a killed rank are to keep their processes.
    """
    backend, variables = ("nccl", SOCKETS) if bench.is_gpu else ("gloo", {})
    nodes = nodes_of(bench, name, backend, flags, variables, 2)
    with nodes:
        end = time.monotonic() + bench.seconds_left - END_SECONDS - LAST_FAULT_SECONDS
        outcomes = inject_faults(bench, nodes, end, most=bench.size(60, 3))
        report_results(bench, name, nodes, outcomes, remains=remains)
        differing, steps = compare_weights(bench, name, nodes)
    bench.findings.add(f"{name}_steps_count", steps)
    bench.findings.at_most(f"{name}: weights unlike those of an undisturbed run", differing, 0)


def compare_weights(bench: Bench, name: str, nodes: Nodes) -> tuple[int, int]:
    """Return how many weights have other bits than after as many undisturbed steps of one process on the CPU, and the
    number of these steps.
    """
    steps = max(step for _, step, _ in nodes.committed_steps())
    saved = nodes.directory / "checkpoints"
    disturbed = checkpoint_weights(saved, bench.directory / f"{name}.pt")
    step = latest_checkpoint_step(saved)
    if step < steps:
        raise CannotMeasure(f"the newest checkpoint is of step {step}, and step {steps} was committed")
    alone = bench.directory / f"{name}-alone"
    train_single_rank(
        *("--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--device", "cpu", "--max-steps", str(step), "--epochs", "1000000"),
        *("--checkpoint-dir", str(alone), "--checkpoint-seconds", "inf"),
        seconds=bench.seconds_left + START_SECONDS,
    )
    undisturbed = checkpoint_weights(alone, bench.directory / f"{name}-alone.pt")
    return sum(int((disturbed[key].cpu() != undisturbed[key]).sum()) for key in undisturbed), step


def latest_checkpoint_step(directory: Path) -> int:
    """Return the step of the newest checkpoint, by ``ddp_trainer checkpoint inspect``."""
    command = [PYTHON, "-m", "ddp_trainer", "checkpoint", "inspect", str(directory), "-o", "json"]
    listing = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    return max((int(checkpoint["step"]) for checkpoint in json.loads(listing.stdout)), default=0)
