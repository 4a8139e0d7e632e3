"""Python's start in a pod with the runtime: ranks are counted, torchrun becomes the launcher, the image's hook runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.in_worker import bootstrap

HOOKS = Path(bootstrap.__file__).parent / "python_path"
ROOT = Path(bootstrap.__file__).parents[3]
SHOW = """
import sys, torch, of_the_user
print("hooked", "_of_the_image" in sys.modules, "ddp_trainer.metrics.record.autolog" in sys.modules)
"""
SHOW_RANK = """
import os, sys
os.write(1, f"{os.environ['RANK']} {sys.argv[1:]}\\n".encode())
"""


def output(directory: Path, **variables: str) -> str:
    (directory / "sitecustomize.py").write_text("import sys\nsys.modules['_of_the_image'] = sys\n")
    hooks = directory / "mine"
    hooks.mkdir()
    (hooks / "of_the_user.py").touch()
    paths = os.pathsep.join([str(hooks), str(HOOKS), str(ROOT), str(directory)])
    environ = {**os.environ, "PYTHONPATH": paths, Env.METRICS_DIR: str(directory), **variables}
    return subprocess.run([sys.executable, "-c", SHOW], env=environ, check=True, capture_output=True, text=True).stdout


def test_a_rank_counts_its_steps_once_it_has_imported_torch(tmp_path: Path) -> None:
    assert output(tmp_path, RANK="0", LOCAL_RANK="0") == "hooked True True\n"


def test_other_processes_of_the_pod_are_left_alone(tmp_path: Path) -> None:
    assert output(tmp_path) == "hooked True False\n"


@pytest.mark.parametrize(
    "start", [["bin/torchrun"], ["-u", "-X", "utf8", "-Bum", "torch.distributed.run"], ["-mtorch.distributed.run"]]
)
def test_torchrun_becomes_the_launcher_with_the_flags_of_the_platform(tmp_path: Path, start: list[str]) -> None:
    runtime = tmp_path / "runtime"
    shutil.copytree(
        ROOT / "ddp_trainer", runtime / "ddp_trainer", ignore=shutil.ignore_patterns("train", "__pycache__")
    )
    shutil.copy(runtime / "ddp_trainer" / "runtime_start.py", runtime / "__main__.py")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("raise SystemExit('stock')\n")
    (tmp_path / "show.py").write_text(
        "import os, sys\nos.write(1, f\"{os.environ['RANK']} {sys.argv[1:]}\\n\".encode())\n"
    )
    environ = {
        "PATH": os.defpath,
        "PYTHONPATH": str(runtime / HOOKS.relative_to(ROOT)),
        Env.LAUNCH_FLAGS: "--standalone --nproc-per-node=2 --log-line-prefix-template='[x] '",
    }
    command = [sys.executable, *start, "--nnodes=8", "--rdzv-endpoint=gone.example.com:1", "show.py", "--nnodes", "7"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines()) == [f"{rank} ['--nnodes', '7']" for rank in (0, 1)], done.stderr
