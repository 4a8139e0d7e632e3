"""The start of a rank that stock torchrun has started: its steps are counted, and the image's own hook runs too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.in_worker import bootstrap

HOOKS = Path(bootstrap.__file__).parent / "python_path"
ROOT = Path(bootstrap.__file__).parents[3]
SHOW = """
import sys, torch, of_the_user
print("hooked", "_of_the_image" in sys.modules, "ddp_trainer.metrics.record.autolog" in sys.modules)
"""


def output(directory: Path, **variables: str) -> str:
    (directory / "sitecustomize.py").write_text("import sys\nsys.modules['_of_the_image'] = sys\n")
    mine = directory / "mine"
    mine.mkdir()
    (mine / "of_the_user.py").touch()
    paths = os.pathsep.join([str(mine), str(HOOKS), str(ROOT), str(directory)])
    environ = {**os.environ, "PYTHONPATH": paths, Env.METRICS_DIR: str(directory), **variables}
    return subprocess.run([sys.executable, "-c", SHOW], env=environ, check=True, capture_output=True, text=True).stdout


def test_a_rank_counts_its_steps_once_it_has_imported_torch(tmp_path: Path) -> None:
    assert output(tmp_path, RANK="0", LOCAL_RANK="0") == "hooked True True\n"


def test_other_processes_of_the_pod_are_left_alone(tmp_path: Path) -> None:
    assert output(tmp_path) == "hooked True False\n"
