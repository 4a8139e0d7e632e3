"""S: each layout trains on NCCL, by ranks that share one GPU, and a rank of two of them is killed."""

from __future__ import annotations

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import TRAIN, Nodes, kill_worker, train_single_rank
from bench.gpu_checks.node_failures import SOCKETS

LAYOUTS: Final = {
    "ddp": (2, ()),
    "shard": (4, ("--parallel", "replicate=2,shard=2")),
    "tp": (2, ("--parallel", "tp=2")),
    "pp": (2, ("--parallel", "pp=2")),
    "offload": (2, ("--parallel", "shard=2", "--fsdp-offload")),
}
"""Name → ranks and flags."""
KILLED: Final = ("ddp", "shard")
"""Layouts one rank of which is killed."""
STEPS: Final = 40
KILL_STEP: Final = 10
OFF_BY: Final = 5e-3
"""Ranks come and go, and sums then have another order."""
UNSUPPORTED: Final = re.compile(
    r"[^|\n]*(?:not supported|not implemented|does not support|unsupported)[^|\n]*", re.IGNORECASE
)
TEXT: Final = "A rank that is killed costs no step where another one holds what it had. "


def run(bench: Bench) -> None:
    """Run all layouts at the same time, and one undisturbed rank."""
    data = bench.folder("text")
    (data / "text.txt").write_text("".join(f"{number}: {TEXT}" for number in range(2000)), encoding="utf-8")
    layouts = {"ddp": LAYOUTS["ddp"]} if bench.is_small else dict(LAYOUTS)
    if not bench.is_gpu:
        layouts.pop("offload", None)  # a CPU has nothing to offload from
    with ThreadPoolExecutor(1 + len(layouts)) as pool:
        alone = pool.submit(train_single_rank, *_flags(bench, data), seconds=bench.seconds_left)
        results = {name: pool.submit(_train_layout, bench, name, data) for name in layouts}
        expected = _last_loss(list(alone.result().events("step")))
        for name, result in results.items():
            _report_outcome(bench, name, result.result(), expected)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run one rank of which was killed."""

    struck: bool
    codes: list[int | None]
    loss: float
    lost: float
    """Samples that were lost or repeated."""
    words: str
    backends: set[str]


def _train_layout(bench: Bench, name: str, data: Path) -> Outcome:
    ranks, flags = LAYOUTS[name]
    end = time.monotonic() + bench.seconds_left
    saves = ("--checkpoint-steps", "5")
    program = (*TRAIN, "--log-json", *_flags(bench, data), *saves, *flags)
    variables = {"DDP_FORK_SERVER": "0", **(SOCKETS if bench.is_gpu else {})}
    nodes = Nodes(bench.folder(name), program, least=ranks, most=ranks, variables=variables)
    with nodes:
        struck = name in KILLED and _kill_at(nodes, end)
        codes = [agent.wait(end - time.monotonic()) for agent in nodes.agents.values()]
        steps = [event for agent in nodes.agents.values() for event in agent.events("step")]
        backends = {str(event["backend"]) for agent in nodes.agents.values() for _, event in agent.events("started")}
        return Outcome(struck, codes, _last_loss(steps), _lost(nodes), nodes.tail(), backends)


def _report_outcome(bench: Bench, name: str, outcome: Outcome, expected: float) -> None:
    found = bench.findings
    if math.isnan(outcome.loss) and (why := UNSUPPORTED.search(outcome.words)):
        found.mark_unsupported(name, why[0])
        return
    if name in KILLED:
        found.require(f"{name}: a worker was killed", outcome.struck)
    if bench.is_gpu:
        found.require(
            f"{name}: NCCL is the backend ({', '.join(sorted(outcome.backends))})", outcome.backends == {"nccl"}
        )
    failed = [code for code in outcome.codes if code != 0]
    found.at_most(f"{name}: agents that did not end with 0 ({failed})", len(failed), 0)
    found.at_most(f"{name}: samples lost or repeated", outcome.lost, 0)
    off = abs(outcome.loss / expected - 1)
    found.at_most(f"{name}: last loss, off from that of one rank", off, OFF_BY)
    if failed:
        found.details[f"{name} printed"] = outcome.words


def _flags(bench: Bench, data: Path) -> tuple[str, ...]:
    return (
        *("--task", "text", "--data", str(data), "--model", "gpt:layers=2,heads=2,width=64", "--window", "64"),
        *("--global-batch", "16", "--batch-slices", "4", "--max-steps", str(STEPS), "--epochs", "1000"),
        *("--device", bench.device, "--log-steps", "1", "--checkpoint-seconds", "inf", "--evaluate-every", "1000000"),
    )


def _kill_at(nodes: Nodes, end: float) -> bool:
    """Kill the last node's worker once the run is under way; whether it was there."""
    while time.monotonic() < end:
        if any(step >= KILL_STEP for _, step, _ in nodes.committed_steps()):
            return kill_worker(nodes.agents[nodes.most - 1]) is not None
        time.sleep(0.01)
    return False


def _last_loss(steps: list[tuple[float, dict[str, Any]]]) -> float:
    """Return the loss of the last step; not a number where there was none."""
    losses = [(int(event["step"]), float(event["loss"])) for _, event in steps]
    return max(losses)[1] if losses else math.nan


def _lost(nodes: Nodes) -> float:
    """Return how many samples the run's summary has as lost or repeated; not a number where no agent printed one."""
    for agent in nodes.agents.values():
        for _, event in agent.events("summary"):
            return float(event["summary"]["samples_lost"] + event["summary"]["samples_repeated"])
    return math.nan
