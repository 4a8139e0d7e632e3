"""A torchrun in the user's command, which starts the launcher only if the job enables this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from tests.support.programs import captured

#: One write, since the ranks share a pipe, and the launcher does not buffer programs without Python.
SHOW = """
import os, sys
os.write(1, f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n".encode())
"""


def launched(folder: Path, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell as each of two ranks."""
    (folder / "show.py").write_text(SHOW)
    words = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node=2", "--no-python"]
    env = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    return captured([*words, "sh", "-c", line], env=env, cwd=folder)


@pytest.mark.parametrize("program", ["show.py 7", "-m show 7", f"--no-python {sys.executable} show.py 7"])
def test_it_becomes_its_program_as_a_rank_of_the_job(tmp_path: Path, program: str) -> None:
    line = f"echo before && torchrun --nproc_per_node=8 --nnodes 4 {program} && echo after"
    done = launched(tmp_path, line, **{Env.TORCHRUN_SHIM: "1"})
    assert done.returncode == 0, done.stderr
    words = sorted(line for line in done.stdout.splitlines() if "rank" in line)
    assert words == ["rank 0 of 2 ['7']", "rank 1 of 2 ['7']"]
    assert (done.stdout.count("before"), done.stdout.count("after")) == (2, 2)
    assert done.stderr.count("--nnodes, --nproc-per-node has no effect") == 1


def test_without_the_key_it_is_the_images_own_and_a_wrong_program_gets_a_sentence(tmp_path: Path) -> None:
    assert "torchrun: not found" in launched(tmp_path, "torchrun show.py").stderr
    wrong = launched(tmp_path, "torchrun gone.py", **{Env.TORCHRUN_SHIM: "1"}).stderr
    assert "no script 'gone.py'" in wrong
    assert "Traceback" not in wrong
