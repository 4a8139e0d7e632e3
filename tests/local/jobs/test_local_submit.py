"""``submit --local`` as a person types it: real jobs of small scripts, their exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.launch_harness import wait_until
from tests.support.local_place import Typed

HELLO = "import os\nprint('hello from', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
BROKEN = "raise ValueError('no such data set')\n"
STEPS = """
import sys, torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""
ENDLESS = "import time\nprint('running', flush=True)\nwhile True: time.sleep(0.1)\n"


def test_a_script_runs_on_all_ranks_and_the_command_ends_with_the_job(typed: Typed) -> None:
    typed.write("hello.py", HELLO)
    done = typed("submit", "hello.py", "--local", "--name", "hello", "-j", "2x2", "--follow")
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if "hello from" in line)
    assert lines == [f"[rank{rank}] hello from {rank} of 4" for rank in range(4)]
    assert "Job hello created on this machine, run " in done.stderr


def test_with_json_the_only_thing_on_stdout_is_one_document(typed: Typed) -> None:
    typed.write("hello.py", HELLO)
    done = typed("submit", "hello.py", "--local", "--name", "hello", "--follow", "--wait", "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["apiVersion"], document["kind"], document["name"]) == ("cli.ddp/v1", "Submission", "hello")
    assert (document["where"], document["state"]) == ("local", "Succeeded")
    assert "[rank0] hello from 0 of 1" in done.stderr


def test_a_failed_job_still_says_in_json_how_it_ended(typed: Typed) -> None:
    typed.write("broken.py", BROKEN)
    words = ["submit", "broken.py", "--local", "--name", "broken", "--max-restarts", "0", "--wait", "-o", "json"]
    done = typed(*words)
    assert done.returncode == 10
    assert json.loads(done.stdout)["state"] == "Failed"
    error = json.loads(done.stderr.splitlines()[-1])
    assert (error["code"], error["reason"]) == (10, "JobFailed")
    assert "no such data set" in error["message"]


def test_a_job_that_is_deleted_while_it_is_followed_is_exit_code_12(typed: Typed) -> None:
    typed.write("endless.py", ENDLESS)
    process = typed.open("submit", "endless.py", "--local", "--name", "mine", "--follow")
    assert process.stdout is not None
    assert any("running" in line for line in process.stdout)
    assert typed("delete", "mine", "--yes").returncode == 0
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.splitlines()[-1]) == (
        12,
        "error: Job 'mine' was deleted before it was complete.",
    )


def test_ctrl_c_while_the_job_is_made_leaves_a_whole_job(typed: Typed) -> None:
    typed.write("endless.py", ENDLESS)
    process = typed.open("submit", "endless.py", "--local", "--name", "mine", "--follow")
    while not (typed.directory / "state/kubectl-ddp/jobs/mine").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "continues" in errors.splitlines()[-1]
    assert typed("wait", "mine", "--for=running", "--timeout=120s").returncode == 0


def test_patience_ends_with_124_and_the_job_goes_on(typed: Typed) -> None:
    typed.write("endless.py", ENDLESS)
    done = typed("submit", "endless.py", "--local", "--name", "mine", "--follow", "--timeout", "2s")
    assert done.returncode == 124, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    [job] = json.loads(typed("list", "--local", "-o", "json").stdout)["items"]
    assert job["state"] in {"Running", "Starting", "Pending"}


def test_texts_reach_the_script_as_they_were_typed(typed: Typed) -> None:
    typed.write("echo.py", "import json, os, sys\nprint(json.dumps([os.environ['TEXT'], *sys.argv[1:]]), flush=True)\n")
    texts = ["$(HOME) $$ ${X}", "a: [b", "é 😀", "--flag", "", "two\nlines", "1e3"]
    words = ("submit", "echo.py", "--local", "--name", "echo", "--env", f"TEXT={texts[0]}", "--follow")
    done = typed(*words, "--", *texts[1:])
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("[rank0] [")]
    assert json.loads(line.removeprefix("[rank0] ")) == texts


def test_a_command_of_another_language_is_a_job_too(typed: Typed) -> None:
    done = typed("submit", "--command", "sh -c 'echo rank $RANK; exit 3'", "--local", "--max-restarts", "0", "--follow")
    assert done.returncode == 10
    assert "[rank0] rank 0" in done.stdout


def test_a_finished_job_of_a_plain_script_keeps_its_last_step(typed: Typed) -> None:
    typed.write("steps.py", STEPS)
    typed("submit", "steps.py", "--local", "--name", "mine", "--max-restarts", "0", "--wait", "--", "1")
    item = json.loads(typed("list", "mine", "-o", "json").stdout)
    assert (item["state"], item["step"]) == ("Failed", 5)
    assert item["finished"] >= item["created"]
    assert "step 5" in typed("status", "mine").stdout


def test_an_error_at_every_start_is_shown_while_the_job_loops_and_ends_it_at_its_third_time(typed: Typed) -> None:
    typed.write("repeat.py", """
import os, sys, time
tries = os.path.join(sys.argv[1], "tries")
with open(tries, "a") as file: file.write("x")
while os.path.getsize(tries) == 3 and not os.path.exists(os.path.join(sys.argv[1], "go")): time.sleep(0.1)
raise RuntimeError("no such data set")
""")  # fmt: skip
    assert typed("submit", "repeat.py", "--local", "--name", "r", "--", str(typed.directory)).returncode == 0
    tries = typed.directory / "tries"
    wait_until(lambda: tries.exists() and tries.stat().st_size == 3, "it did not start a third time")
    wait_until(lambda: "Failing:" in typed("status", "r", "--local").stdout, "status shows no failures")
    why = typed("why", "r", "--local")
    assert why.returncode == 10
    assert "(2 of 10 restarts used)" in why.stdout
    assert "RuntimeError: no such data set" in why.stdout
    assert "2 failures, no step" in typed("list", "--local").stdout
    (typed.directory / "go").touch()
    ended = typed("wait", "r", "--local", "--timeout", "60s")
    assert ended.returncode == 10
    assert tries.stat().st_size == 3
    assert "RuntimeError: no such data set" in typed("list", "--local").stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "from torch.utils.data import DataLoader, Dataset\n"
                "class Broken(Dataset):\n"
                "    def __len__(self): return 4\n"
                "    def __getitem__(self, index): raise KeyError('no sample 7')\n"
                "for _ in DataLoader(Broken(), num_workers=1): pass\n"
            ),
            "KeyError: 'no sample 7'",
        ),
        (
            (
                "import argparse\nparser = argparse.ArgumentParser('train.py')\n"
                "parser.add_argument('--data', required=True)\nparser.parse_args()\n"
            ),
            "exited with code 2: train.py: error: the following arguments are required: --data",
        ),
    ],
    ids=["a data loader's process", "argparse"],
)
def test_every_command_has_the_same_sentence_for_an_error(typed: Typed, text: str, expected: str) -> None:
    typed.write("broken.py", text)
    told = typed.refused("submit", "broken.py", "--local", "--name", "b", "--max-restarts", "0", "--wait", code=10)
    assert f"{expected}." in told
    assert expected in typed("why", "b", "--local").stdout
    assert expected in typed("status", "b", "--local").stdout
    assert expected[:37] in typed("list", "--local").stdout


APART = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def run(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(20000 + os.getppid() % 10000)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)
"""
TOGETHER = (
    "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ndist.destroy_process_group()"
)


@pytest.mark.parametrize(("text", "apart"), [(APART, True), (TOGETHER, False)], ids=["apart", "together"])
def test_a_success_of_ranks_that_never_worked_together_is_said_everywhere(
    typed: Typed, text: str, *, apart: bool
) -> None:
    typed.write("spawn.py", text)
    ended = typed("submit", "spawn.py", "--local", "--name", "s", "--nnodes", "2", "--nproc", "1", "--wait")
    assert ended.returncode == 0, ended.stderr
    assert ("No process group held all 2 ranks" in typed("logs", "s", "--local").stdout) is apart
    assert ("no process group held all ranks" in typed("status", "s", "--local").stdout) is apart
    assert ("its ranks never worked together" in typed("why", "s", "--local").stdout) is apart
    assert ("ranks were apart" in typed("list", "--local").stdout) is apart
