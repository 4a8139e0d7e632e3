"""Ranks die at random points of a step, on a model of NCCL's rules: committed steps are whole, and groups end.

``DDP_STANDIN_KILLS`` is how many die in each layout; ``DDP_STANDIN_SEED`` repeats a run, which prints its seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.local.launch import test_launch_reform as reform
from tests.local.workloads import train_on_stream_model
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_on_stream_model import EvenNumbers
from tests.support.launch_harness import Running, Stage

KILLS = int(os.environ.get("DDP_STANDIN_KILLS", "2"))
SEED = os.environ.get("DDP_STANDIN_SEED") or str(random.randrange(1 << 30))
ROOT = Path(__file__).parents[3]
BATCH = 16
STEPS_PER_EPOCH = EvenNumbers.rows // BATCH
LAYOUTS = {
    "ddp": (2, ("--batch-slices", "4"), 700),
    "shard": (4, ("--parallel", "replicate=2,shard=2", "--batch-slices", "4"), 1600),
    "tp": (4, ("--parallel", "replicate=2,tp=2", "--batch-slices", "2"), 1500),
    "pp": (4, ("--parallel", "replicate=2,pp=2", "--batch-slices", "4"), 2500),
}
"""Ranks, flags, and about as many operations as a step has."""


def flags_of(layout: str, log: Path, steps: int) -> tuple[str, ...]:
    """Flags of the trainer."""
    return (
        *("--task", f"{train_on_stream_model.__name__}:EvenNumbers", "--global-batch", str(BATCH)),
        *("--epochs", "100000", "--max-steps", str(steps), "--schedule", "constant"),
        *("--optimizer", "sgd", "--evaluate-every", "100000", "--checkpoint-dir", str(log / "kept")),
        *("--checkpoint-steps", "5", *LAYOUTS[layout][1]),
    )


def variables_of(layout: str, log: Path, kills: int) -> dict[str, str]:
    """Environment of the processes of a run."""
    seeds = {"SEED": SEED, "STREAM_MODEL_SEED": SEED}
    details = {"LOG": str(log), "KILLS": str(kills), "OPERATIONS": str(LAYOUTS[layout][2])}
    return {"OMP_NUM_THREADS": "1", **seeds, **details}


def start(stage: Stage, layout: str, *flags: str, kills: int, steps: int) -> tuple[Running, Path]:
    """A run whose ranks die, and where its processes note what they do."""
    log = stage.folder / "killed"
    log.mkdir()
    run = stage.launch(
        *("--nproc-per-node", str(LAYOUTS[layout][0]), "--max-restarts", "100000"),
        *("-m", train_on_stream_model.__name__, "--log-json", *flags_of(layout, log, steps), *flags),
        **variables_of(layout, log, kills),
        DDP_FORK_SERVER="0.5",
    )
    return run, log


def undisturbed(folder: Path, layout: str, steps: int) -> tuple[Noted, dict[str, Any]]:
    """Return the log and the evaluation of a run on gloo without deaths."""
    log = folder / "undisturbed"
    log.mkdir()
    variables = {**variables_of(layout, log, kills=0), "PLAIN": "1"}
    program, flags = ("-m", train_on_stream_model.__name__), flags_of(layout, log, steps)
    with WorkerGroup(LAYOUTS[layout][0], flags, directory=log, program=program, env=variables) as group:
        [evaluated] = [event for event in group.events() if event["event"] == "evaluated"]
        assert set(group.finish()) == {0}, group.stderr()
    return Noted.of(log), evaluated


@dataclass
class Noted:
    """Log of the processes of a run."""

    losses: dict[int, set[float]] = field(default_factory=lambda: defaultdict(set))
    """Losses of each committed step, as each process received them."""
    samples: dict[int, list[int]] = field(default_factory=dict)
    """Samples of each step, as read in the last group that took it."""
    groups: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    """Groups of each process in order, and whether a step was committed there."""

    @classmethod
    def of(cls, log: Path) -> Noted:
        noted = cls()
        read: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in log.glob("*.log"):
            groups = noted.groups[file.stem]
            step = generation = -1
            for line in file.read_text().splitlines():
                match line.split():
                    case "A", number:
                        groups.append((int(number), False))
                    case "S", number, at:
                        generation, step = int(number), int(at)
                    case "F", sample:
                        read[step][generation].append(int(sample))
                    case "V", number, at, loss, _:
                        groups[-1] = (int(number), True)
                        noted.losses[int(at)].add(float(loss))
        noted.samples = {step: of[max(of)] for step, of in read.items()}
        return noted

    @property
    def survivors(self) -> list[str]:
        """Processes that were in several groups."""
        return [process for process, groups in self.groups.items() if len(groups) > 1]

    @property
    def stayed_in_vain(self) -> list[str]:
        """Processes that outlived a group before its first step counted."""
        return [process for process, groups in self.groups.items() if not all(counted for _, counted in groups[:-1])]


def is_of_a_lost_peer(line: str) -> bool:
    """Return whether an error names the lost peer, and not a result of garbage data."""
    return "lost a peer" in line or "This process ends with its group: " in line


def demand_every_sample_once(noted: Noted, steps: int) -> None:
    assert sorted(noted.samples) == list(range(steps))
    for first in range(0, steps, STEPS_PER_EPOCH):
        epoch = [sample for step in range(first, first + STEPS_PER_EPOCH) for sample in noted.samples[step]]
        assert Counter(epoch) == dict.fromkeys(range(EvenNumbers.rows), 1), f"epoch of step {first}"


@pytest.mark.timeout(600 + 90 * KILLS)
@pytest.mark.parametrize(
    "layout", ["shard", *(pytest.param(name, marks=pytest.mark.long) for name in ("ddp", "tp", "pp"))]
)
def test_ranks_that_die_anywhere_in_a_step_leave_no_garbage_in_what_the_others_go_on_with(
    stage: Stage, layout: str
) -> None:
    print(f"DDP_STANDIN_SEED={SEED}")
    steps = 4 * (KILLS + 2)  # at most four in each group before a rank dies, and whole epochs
    expected, evaluated = undisturbed(stage.folder, layout, steps)
    run, log = start(stage, layout, "--survive-on-nccl", kills=KILLS, steps=steps)
    run.process.wait(240 + 60 * KILLS)
    assert run.code() == 0, run.output
    noted = Noted.of(log)
    assert len((log / "kills").read_text().splitlines()) == KILLS
    reform.demand_summary(run, steps=steps)
    demand_every_sample_once(noted, steps)
    # One step with gradients that were not reduced would show in the losses of all later ones.
    found = {step: sorted(losses) for step, losses in noted.losses.items()}
    assert found == {step: pytest.approx(sorted(losses), rel=1e-6) for step, losses in expected.losses.items()}
    assert reform.told(run, "evaluated")["metrics"] == pytest.approx(evaluated["metrics"], rel=1e-6)
    assert noted.stayed_in_vain == []
    assert [line for line in run.lines if "error: " in line.lower() and not is_of_a_lost_peer(line)] == []


def test_without_being_asked_to_no_process_outlives_a_group_whose_collectives_run_on_streams(stage: Stage) -> None:
    run, log = start(stage, "ddp", kills=1, steps=12)
    assert run.code() == 0, run.output
    assert len((log / "kills").read_text().splitlines()) == 1
    noted = Noted.of(log)
    assert noted.survivors == []
    demand_every_sample_once(noted, 12)


OWN_LOOP = """
import sys
from tests.local.workloads import train_reformed
from tests.support import stream_model
stream_model.install()
sys.exit(train_reformed.main())
"""


@pytest.mark.long
def test_a_loop_of_ones_own_outlives_such_a_group_where_the_environment_asks_for_it(stage: Stage) -> None:
    (stage.folder / "log").mkdir()
    stage.store()
    script = stage.script(OWN_LOOP, "own_loop.py")
    env = {"DDP_SURVIVE_ON_NCCL": "1", "PYTHONPATH": str(ROOT)}
    first, second = (reform.agent(stage, index, (script,), nnodes="2", **env) for index in (0, 1))
    survivor, victim = reform.training(first, 2), reform.training(second, 2)
    seen = len(first.lines)
    os.kill(victim, signal.SIGKILL)
    assert reform.training(first, 2, after=seen) == survivor
    reform.hurry(stage)
    assert [first.code(), second.code()] == [0, 0]
    reform.demand_nothing_lost(stage, first)
