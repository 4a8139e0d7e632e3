"""Exit of a worker that has used torch's process groups: with all exit handlers, and without a crash after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.launch.workers.worker_group import BOOTSTRAP
from tests.support.launch_harness import Stage
from tests.support.programs import captured

SCRIPT = """
import atexit, ctypes, os, sys
import torch.distributed as dist

class Trap:
    def __del__(self, abort=os.abort):
        abort()

trap = Trap()  # in place of torch's threads, which now and then abort when modules are taken apart
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
    return captured(command, timeout=120)


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [("raise SystemExit(7)", 7, ""), ("raise KeyError('missing')", 1, "KeyError: 'missing'")],
)
def test_a_worker_with_a_process_group_ends_before_its_modules_are_taken_apart(
    tmp_path: Path, ending: str, code: int, message: str
) -> None:
    done = worker(tmp_path, SCRIPT + ending)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "the last words" in done.stdout
    assert "atexit\n" in done.stdout
    assert done.stdout.endswith("atexit in C\n")


def test_a_worker_without_torch_ends_as_python_does(tmp_path: Path) -> None:
    done = worker(tmp_path, "class Last:\n    def __del__(self):\n        print('taken apart')\nlast = Last()\n")
    assert (done.returncode, done.stdout) == (0, "taken apart\n")


THREAD = """
import ctypes, os, threading, time
import torch.distributed as dist

libc = ctypes.CDLL(None)
asleep, awake = os.pipe()
finished = ctypes.create_string_buffer(64)
libc.sem_init(finished, 0, 0)
turns = 0

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def of_a_library(_):  # runs in a thread that C starts
    os.read(asleep, 1)  # until C's exit functions run
    before, _ = turns, time.sleep(0.1)  # gives the other thread a turn
    print("the library's thread ran, the other", "ran" if turns > before else "did not", flush=True)
    libc.sem_post(finished)

def of_python():
    global turns
    while True:
        turns += 1

libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, of_a_library, None)
threading.Thread(target=of_python, daemon=True).start()
# C calls them in reverse, and waits in the last one as a destructor that joins its thread.
libc.__cxa_atexit(libc.sem_wait, finished, None)
libc.__cxa_atexit(libc.close, ctypes.c_void_p(awake), None)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
"""


def test_exit_functions_in_c_can_join_a_thread_that_needs_the_gil(tmp_path: Path) -> None:
    done = worker(tmp_path, THREAD)
    assert (done.returncode, done.stdout) == (0, "the library's thread ran, the other did not\n")


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
dist.destroy_process_group()
"""


def test_a_worker_with_a_sharded_model_ends_without_an_abort(tmp_path: Path) -> None:
    done = worker(tmp_path, SHARDED)
    assert (done.returncode, done.stderr) == (0, "")


HELD = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if os.environ["RANK"] == "1":
    libc.__cxa_atexit(getattr(libc, sys.argv[1]), None, None)
if sys.argv[2:]:
    import torch.distributed
sys.exit(int(os.environ["CODE"]) if os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.parametrize(("code", "torch"), [(0, []), (7, ["torch"])])
def test_a_worker_that_does_not_exit_is_killed_and_keeps_the_code_of_its_program(
    stage: Stage, code: int, torch: list[str]
) -> None:
    run = stage.launch("--standalone", "--nproc-per-node", "2", stage.script(HELD), "pause", *torch, CODE=str(code))
    assert run.code() == code, run.output
    assert f"Rank 1 ended with code {code}, but its process did not exit" in run.output
    thread = run.line(r"^  (\d+) (\S+): state (\w), wchan \S+, system call \S+$")
    assert thread[3] == "S"
    assert bool(torch) is ("most recent call first" in run.output)


def test_a_signal_that_ends_a_worker_after_its_program_does_not_change_the_code(stage: Stage) -> None:
    run = stage.launch("--standalone", "--nproc-per-node", "2", stage.script(HELD), "abort", CODE="7")
    assert run.code() == 7, run.output
    assert "Rank 1 died of signal 6 while it exited" in run.output
