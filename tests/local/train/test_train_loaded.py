"""A spread model at its beginning: with the weights of one process and no room for all; or loaded, and none made."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.local.workloads import train_loaded
from tests.support.process_memory import RETURNING


def test_weights_are_those_of_one_process_or_of_the_state_under_any_layout() -> None:
    program, environment = [sys.executable, "-m", train_loaded.__name__], {**os.environ, **RETURNING}
    run = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    wanted = [f"{task.__name__} {layout}" for task, layout, _ in train_loaded.CASES]
    assert run.stdout.splitlines() == wanted
