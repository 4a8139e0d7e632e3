"""A hand-written loop, made elastic, that is stopped or wrong; test_train_restart.py kills and resizes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.local.train.test_train_restart import start
from tests.local.workloads import train_reformed
from tests.support import fork_server


def test_sigterm_saves_the_step_and_leaves_the_loop_with_143(tmp_path: Path) -> None:
    with start(train_reformed, 2, 0, tmp_path, epochs=300) as group:
        group.wait_for_step(5)
        group.ranks[1].send_signal(signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED] * 2, group.stderr()
        match = re.search(r"Stop requested: left after step (\d+) of 5700, saved\.", group.stderr())
        assert match is not None
    with start(train_reformed, 1, 1, tmp_path, epochs=300) as group:
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
