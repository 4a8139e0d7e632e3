"""How a worker ends that has used torch's process groups: with all that was to be done at exit, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.launch.workers import BOOTSTRAP

SCRIPT = """
import atexit, ctypes, os, sys
import torch.distributed as dist

class Trap:
    def __del__(self, abort=os.abort):
        abort()

trap = Trap()  # stands for torch's threads, which now and then abort when modules are taken apart
atexit.register(print, "atexit", flush=True)
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.puts, ctypes.c_char_p(b"atexit in C"), None)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
sys.stdout.write("the last words")
"""


def worker(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, str(BOOTSTRAP), str(os.getpid()), "script", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('a reason')", 1, "a reason"),
        ("raise KeyError('missing')", 1, "KeyError: 'missing'"),
    ],
)
def test_a_worker_with_a_process_group_ends_before_its_modules_are_taken_apart(
    tmp_path: Path, ending: str, code: int, said: str
) -> None:
    done = worker(tmp_path, SCRIPT + ending)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "the last words" in done.stdout
    assert "atexit\n" in done.stdout
    assert done.stdout.endswith("atexit in C\n")


def test_a_worker_without_torch_ends_as_python_does(tmp_path: Path) -> None:
    done = worker(tmp_path, "class Last:\n    def __del__(self):\n        print('taken apart')\nlast = Last()\n")
    assert (done.returncode, done.stdout) == (0, "taken apart\n")
