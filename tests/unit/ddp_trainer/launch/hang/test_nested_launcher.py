"""Launchers below a worker: real processes with the command lines of launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddp_trainer.launch.failures import launcher_in_stderr
from ddp_trainer.launch.hang.nested_launcher import launcher_of, nested_launcher

TORCHRUN = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 7, in <module>
[rank0]: ValueError: the 7th layer has no name
Traceback (most recent call last):
  File "/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
============================================================
"""


def test_a_command_line_of_accelerate_is_a_launcher_and_one_with_the_name_as_an_argument_is_not() -> None:
    assert launcher_of(["accelerate", "launch", "train.py"]) == "accelerate launch"
    assert launcher_of(["python", "-u", "train.py", "--lr", "0.1", "--launcher", "torchrun"]) == ""


def test_a_launcher_below_a_process_is_found_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(flush=True)\ninput()\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["/bin/torchrun", "train.py"], executable=sys.executable, cwd=tmp_path, **pipes) as child:
        child.stdout.readline()
        assert nested_launcher(os.getpid()) == "torchrun"
        child.communicate(b"\n")
    assert nested_launcher(os.getpid()) == ""


def test_the_first_error_of_a_failed_launcher_is_named_and_other_output_is_not_its() -> None:
    sentence = "torchrun, which the script starts, failed: ValueError: the 7th layer has no name"
    assert launcher_in_stderr(TORCHRUN) == sentence
    assert launcher_in_stderr("Traceback\nValueError: torchrun") == ""
