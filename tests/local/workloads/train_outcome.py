"""One run of real trainer processes on digits, undisturbed or killed once, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.local.workloads.train_group import ENTRY, WorkerGroup

TASKS = "tests.local.workloads.train_flawed:"
STEPS = 24
"""One more than an epoch."""
COMMON = ("--max-steps", str(STEPS), "--optimizer", "sgd", "--learning-rate", "0.1", "--warmup-steps", "5")


@dataclass(frozen=True, slots=True)
class Ended:
    """Output and results of a run."""

    losses: list[float]
    """Loss of every step that rank 0 logged."""
    rates: list[float]
    notes: list[str]
    summary: dict[str, Any]
    stderr: str


def train(
    directory: Path,
    flags: Sequence[str],
    *,
    task: str = "PlainDigits",
    world: int = 2,
    program: Sequence[str] = ("-c", ENTRY),
    env: Mapping[str, str] | None = None,
    kill_at: int | None = None,
    fatal_batch: int | None = None,
) -> Ended:
    """Train to the end. If rank 1 is killed after a step, or dies in a batch of DyingDigits, a new group resumes."""
    directory.mkdir(parents=True, exist_ok=True)
    every = [*COMMON, "--task", TASKS + task, "--log-steps", "1", "--summary", str(directory / "summary"), *flags]
    is_killed = kill_at is not None or fatal_batch is not None
    if is_killed:
        fatal = {**(env or {}), "FATAL_BATCH": str(fatal_batch or 0)}
        with WorkerGroup(world, every, directory=directory, program=program, env=fatal) as group:
            if kill_at is not None:
                group.wait_for_step(kill_at)
                group.ranks[1].kill()
            assert group.finish()[1] == -9
    generation = int(is_killed)
    with WorkerGroup(world, every, directory=directory, program=program, env=env, generation=generation) as group:
        events = list(group.events())
        assert group.finish() == [0] * world, group.stderr()
        errors = group.stderr()
    steps = [event for event in events if event["event"] == "step"]
    return Ended(
        losses=[event["loss"] for event in steps],
        rates=[event["learning_rate"] for event in steps],
        notes=[event["text"] for event in events if event["event"] == "note"],
        summary=json.loads((directory / "summary").read_text()),
        stderr=errors,
    )


def fail(
    directory: Path,
    flags: Sequence[str],
    *,
    task: str = "PlainDigits",
    world: int = 2,
    env: Mapping[str, str] | None = None,
) -> tuple[list[int], str]:
    """Exit codes of all ranks, and what rank 0 said."""
    every = [*COMMON, "--task", TASKS + task, *flags]
    with WorkerGroup(world, every, directory=directory, env=env) as group:
        codes = group.finish()
        return codes, group.stderr()
