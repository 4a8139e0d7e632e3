"""A spread model that is about to be loaded: nothing of it is made or sent before, and all of it is there after."""

from __future__ import annotations

import subprocess
import sys

from tests.local import train_loaded


def test_weights_are_those_of_the_state_and_nothing_is_made_for_them_under_any_layout() -> None:
    run = subprocess.run([sys.executable, "-m", train_loaded.__name__], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    wanted = [f"{task.__name__} {layout}" for task, layout, _ in train_loaded.CASES]
    assert run.stdout.splitlines() == wanted
