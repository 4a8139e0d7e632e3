"""A hand-written loop, made elastic: killed, resized and stopped, it loses and repeats nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.local.workloads import train_own_loop
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_logged import surviving_steps
from tests.support import fork_server

STEPS_PER_EPOCH = 19
EPOCHS = 2


def start(world: int, generation: int, tmp_path: Path, name: str, *, epochs: int = EPOCHS) -> WorkerGroup:
    directory, logs = tmp_path / f"{name}{generation}", tmp_path / f"{name}-logs"
    directory.mkdir()
    logs.mkdir(exist_ok=True)
    return WorkerGroup(
        world,
        ["--checkpoints", str(tmp_path / name), "--epochs", str(epochs)],
        directory=directory,
        program=("-m", train_own_loop.__name__),
        generation=generation,
        env={"FETCH_LOG": str(logs)},
    )


def counted(logs: Path) -> dict[int, list[int]]:
    """Step → sorted samples that counted."""
    return {step: sorted(ids) for step, ids in surviving_steps(logs).items()}


def test_kills_and_resizes_lose_and_repeat_nothing_and_change_nothing(tmp_path: Path) -> None:
    with start(1, 0, tmp_path, "whole") as group:
        *_, undisturbed = group.events()
        assert group.finish() == [Exit.SUCCESS], group.stderr()
    for generation, (world, step, victim) in enumerate([(3, 9, 2), (2, 25, 0)]):
        with start(world, generation, tmp_path, "killed") as group:
            group.wait_for_step(step)
            group.ranks[victim].kill()
            codes = group.finish()
        assert codes[victim] == -signal.SIGKILL
        assert [code for rank, code in enumerate(codes) if rank != victim] == [Exit.RENDEZVOUS_LOST] * (world - 1)
    with start(3, 2, tmp_path, "killed") as group:
        *_, end = group.events()
        assert group.finish() == [Exit.SUCCESS] * 3, group.stderr()

    steps = counted(tmp_path / "killed-logs")
    assert steps == counted(tmp_path / "whole-logs")
    for epoch in range(EPOCHS):
        first = epoch * STEPS_PER_EPOCH + 1
        counts = Counter(sample for step in range(first, first + STEPS_PER_EPOCH) for sample in steps[step])
        assert counts == dict.fromkeys(range(train_own_loop.SAMPLES), 1)
    assert (end["samples_lost"], end["samples_repeated"], end["steps"]) == (0, 0, EPOCHS * STEPS_PER_EPOCH)
    assert end["lost_steps"] > 0
    # The optimizer enlarges what sums of other orders round differently.
    assert end["loss"] == pytest.approx(undisturbed["loss"], rel=1e-2)


def test_sigterm_saves_the_step_and_leaves_the_loop_with_143(tmp_path: Path) -> None:
    with start(2, 0, tmp_path, "stopped", epochs=300) as group:
        group.wait_for_step(5)
        group.ranks[1].send_signal(signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED] * 2, group.stderr()
        match = re.search(r"Told to stop: left after step (\d+) of 5700, saved\.", group.stderr())
        assert match is not None
    with start(1, 1, tmp_path, "stopped", epochs=300) as group:
        assert next(event["step"] for event in group.events()) == int(match[1])


FORGETFUL = """
import torch
from ddp_trainer import elastic
model = torch.nn.Linear(1, 1)
with elastic.run(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(8, 1), global_batch=4) as job:
    for step in job:
        for batch in step:
            {body}
"""


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("pass", "A batch of step 0 was not given to step.backward. Call step.backward(loss) once for each batch."),
        ("step.backward(model(batch).mean()); step.backward(model(batch).mean())", "called without a batch of step 0"),
    ],
)
def test_a_loop_that_forgets_a_batch_is_told_so(body: str, sentence: str, tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    with errors.open("w") as stderr:
        process = fork_server.start(("-c", FORGETFUL.format(body=body)), env=os.environ, stderr=stderr)
    with process.stdout:
        process.communicate(timeout=120)
    assert process.returncode == Exit.FAILURE
    assert sentence in errors.read_text()


def test_importing_the_package_and_the_module_costs_nothing() -> None:
    program = "import ddp_trainer, ddp_trainer.elastic, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
