"""The launcher from the runtime image, in an image of the user's that does not hold it."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

import ddp_trainer
from ddp_trainer import runtime_start
from ddp_trainer.common.constants import Exit
from tests.support.programs import captured

SHOW = "import os, sys, ddp_trainer; print('worker', sys.argv[1:], ddp_trainer.__file__, os.environ['PYTHONPATH'])"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """The files of the image, as the Dockerfile places them."""
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__main__.py").symlink_to(runtime_start.__file__)
    (tmp_path / "runtime" / "ddp_trainer").symlink_to(Path(ddp_trainer.__file__).parent)
    return tmp_path / "runtime"


def test_the_launcher_and_its_workers_import_the_mounted_package_after_the_users_own_paths(runtime: Path) -> None:
    script = runtime.parent / "show.py"
    script.write_text(SHOW)
    words = [sys.executable, runtime, "launch", "--standalone", "--nproc-per-node=1", script, "7"]
    environ = {"PATH": os.defpath, "PYTHONPATH": "/users/own"}
    done = captured(words, env=environ, cwd=runtime.parent)
    assert done.returncode == 0, done.stderr
    assert f"worker ['7'] {runtime}/ddp_trainer/__init__.py /users/own:{runtime}" in done.stdout


def test_an_older_python_ends_with_one_sentence_before_it_imports_anything_that_it_cannot_read(runtime: Path) -> None:
    ast.parse(Path(runtime_start.__file__).read_text(), feature_version=(3, 0))
    older = "import runpy, sys; sys.version_info = (3, 10, 4); runpy.run_path(sys.argv[1], run_name='__main__')"
    done = captured([sys.executable, "-c", older, runtime])
    assert done.returncode == Exit.USAGE == runtime_start.USAGE
    assert "is Python 3.10.4, and the launcher needs 3.11. Use another --image" in done.stderr
    assert done.stderr.count("\n") == 1
