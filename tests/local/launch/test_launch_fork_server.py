"""Restarts by fork: a worker that comes from the fork server is like one that Python started, only sooner."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from bench.drivers.fork_server import fork_server_pids, is_fork_server_ready, workers
from ddp_trainer.launch.in_worker.profile import worker_of
from tests.support.launch_harness import Running, Stage, is_alive, wait_until

SCRIPT = """
import sys
is_forked = "torch" in sys.modules
import json, os, random, signal, threading, time
import numpy, torch
def handlers(): return {n: str(signal.getsignal(n)) for n in (1, 2, 3, 13, 15, 17)}
os.write(1, json.dumps({  # in one piece, which a pipe keeps apart from what other ranks write
    "is_forked": is_forked, "pid": os.getpid(),
    "generation": int(os.environ["DDP_GENERATION"]), "rank": int(os.environ["RANK"]),
    "draws": [random.random(), float(numpy.random.rand()), float(torch.rand(1))],
    "same": {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "file": __file__,
        "main": sys.modules["__main__"].__dict__ is globals(), "name": __name__, "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")) if not numpy.__name__ else 0, "handlers": handlers(),
        "flags": str(sys.flags), "stdin": os.readlink("/proc/self/fd/0"), "leader": os.getsid(0) == os.getpid(),
        "parent": os.getppid(), "stdout": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
        "torch_threads": torch.get_num_threads(), "children": os.path.exists("/proc/self/task/x"), "mask": os.umask(18),
        "names": sorted(set(os.environ) - {"DDP_FENCE"}), "affinity": sorted(os.sched_getaffinity(0)),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "extra": sorted(
            os.readlink(f"/proc/self/fd/{n}").partition(":[")[0].replace("attempt_1", "attempt_0")
            for n in os.listdir("/proc/self/fd") if int(n) > 2
            and os.path.exists(f"/proc/self/fd/{n}") and "/proc/" not in os.readlink(f"/proc/self/fd/{n}")),
    },
}).encode() + b"\\n")
BODY
"""


def told(run: Running, generation: int) -> dict:
    """Return the JSON line of rank 0 of a generation."""
    return json.loads(run.line(rf'^\{{.*"generation": {generation}, "rank": 0, .*')[0])


def start(stage: Stage, body: str, *flags: str, **env: str) -> Running:
    script = stage.script(SCRIPT.replace("BODY", body))
    return stage.launch("--max-restarts", "1000", *flags, script, "argument", DDP_FORK_SERVER="0.1", **env)


def forked(run: Running) -> tuple[dict, dict]:
    """Kill workers until one comes from a fork server; the first worker of all, and that one."""
    first = now = told(run, 1)
    while not now["is_forked"]:
        # The fork server needs about as long as a worker to import torch; a kill before that only begins it again.
        wait_until(lambda: fork_server_pids(run.pid) or not is_alive(run.pid), "no fork server was started")
        wait_until(lambda: is_fork_server_ready(run.pid), "the fork server does not get ready")
        os.kill(now["pid"], signal.SIGKILL)
        now = told(run, now["generation"] + 1)
    return first, now


def test_a_fork_looks_like_a_fresh_process_and_shares_no_random_numbers_until_its_fork_server_is_killed(
    stage: Stage,
) -> None:
    run = start(stage, "time.sleep(600)", "--nproc-per-node", "2")
    fresh, fork = forked(run)
    assert fork["same"] == fresh["same"]
    again = re.compile(rf'^\{{.*"generation": {fork["generation"]}, .*')
    wait_until(lambda: sum(bool(again.match(line)) for line in run.lines) == 2, "the other fork is missing")
    draws = [fresh["draws"], *(json.loads(line)["draws"] for line in run.lines if again.match(line))]
    assert all(len(set(numbers)) == len(draws) for numbers in zip(*draws, strict=True))

    (server,) = fork_server_pids(run.pid)
    os.kill(server, signal.SIGKILL)
    os.kill(fork["pid"], signal.SIGKILL)  # at once, before there is another fork server
    assert not told(run, fork["generation"] + 1)["is_forked"]
    left = fork_server_pids(run.pid)
    run.send(signal.SIGTERM)
    assert run.code() == 143
    wait_until(lambda: not any(map(is_alive, left)), "a fork server outlived the run")


def test_a_fork_can_do_what_a_fresh_process_can(stage: Stage, tmp_path: Path) -> None:
    body = (
        "import multiprocessing as mp\n"
        "from torch.utils.data import DataLoader\n"
        "def square(n): return n * n\n"
        "if __name__ == '__main__' and is_forked:\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        with mp.get_context(method).Pool(1) as pool: print(method, pool.map(square, [1, 2, 3]), flush=True)\n"
        "    print('loaded', sum(DataLoader(range(10), num_workers=1)).item(), flush=True)\n"
        "    torch.mm(torch.ones(300, 300), torch.ones(300, 300)); numpy.ones((300, 300)) @ numpy.ones((300, 300))\n"
        "    raise ValueError('after all')\n"
        "if __name__ == '__main__': time.sleep(600)"
    )
    run = start(stage, body, "--tee", "3", "--log-line-prefix-template", "", "--log-dir", str(tmp_path / "logs"))
    _, fork = forked(run)
    for line in ("spawn [1, 4, 9]", "fork [1, 4, 9]", "forkserver [1, 4, 9]", "loaded 45", "ValueError: after all"):
        run.line(re.escape(line))
    told(run, fork["generation"] + 1)  # it was seen to fail, and started again
    assert "fork_server_process.py" not in run.output
    assert "bootstrap.py" not in run.output
    (log,) = (tmp_path / "logs").glob(f"*/attempt_{fork['generation'] - 1}/0/stdout.log")
    assert "loaded 45\n" in log.read_text()


def test_a_spare_has_imported_before_it_takes_the_place_of_a_lost_node(stage: Stage) -> None:
    stage.store()
    script = stage.script(SCRIPT.replace("BODY", "if not is_forked: time.sleep(600)"))
    member = stage.agent(0, script, nnodes="1", DDP_FORK_SERVER="0.1")
    told(member, 1)
    spare = stage.agent(1, script, nnodes="1", DDP_FORK_SERVER="0.1")
    spare.line("the group is full, waiting as a spare")
    wait_until(lambda: is_fork_server_ready(spare.pid), "the spare's fork server does not get ready")
    member.send(signal.SIGKILL)
    assert told(spare, 2)["is_forked"]
    assert spare.code() == 0


FIRST = """
import sys
is_forked = "torch._dynamo" in sys.modules
import torch
import os, time
from torch.nn.parallel import DistributedDataParallel
print("generation", os.environ["DDP_GENERATION"], "forked", is_forked, os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_script_that_begins_with_torch_is_imported_once_and_forked_before_a_group_stops_for_it(stage: Stage) -> None:
    stage.store()
    script = stage.script(FIRST)
    # names that no test beside this one has
    names = [f"{stage.folder.name}-{index}" for index in (0, 1)]
    member = stage.agent(0, script, nnodes="1:2", DDP_FORK_SERVER="5", DDP_POD_NAME=names[0])
    member.line("generation 1 forked True")
    newcomer = stage.agent(1, script, nnodes="1:2", DDP_FORK_SERVER="5", DDP_POD_NAME=names[1])
    forks = set()
    for run in (member, newcomer):
        run.line("ddp-launch: generation 2")
        forks.add(int(run.line(r"^generation 2 forked True (\d+)")[1]))
    # /proc shows the environment of the fork server for both
    assert {worker_of(0, {"DDP_RUN_ID": "", "DDP_POD_NAME": name}).pid for name in names} == forks


def test_a_module_that_begins_with_torch_is_imported_once_as_a_script_is(stage: Stage) -> None:
    package = stage.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(FIRST)
    run = stage.launch("--nproc-per-node", "2", "-m", "package.first", PYTHONPATH=str(stage.folder))
    run.line("generation 1 forked True")


@pytest.mark.parametrize(("nproc", "is_forked"), [(2, True), (1, False)])
def test_several_workers_of_the_reference_trainer_import_torch_once(stage: Stage, nproc: int, is_forked: bool) -> None:
    program = ("-m", "ddp_trainer", "train", "--epochs", "100000", "--log-json")
    run = stage.launch("--nproc-per-node", str(nproc), *program)
    run.line('"event": "started"')
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in workers(run.pid)]
    assert ["fork_server_process.py" in command for command in commands] == [is_forked] * nproc


def test_a_launcher_that_is_told_to_stop_does_not_wait_for_imports(stage: Stage) -> None:
    (stage.folder / "torch.py").write_text("import sys, time\nprint('importing', file=sys.stderr)\ntime.sleep(600)")
    run = stage.launch(
        stage.script(FIRST),
        DDP_FORK_SERVER="5",
        PYTHONPATH=os.pathsep.join([str(stage.folder), os.environ.get("PYTHONPATH", "")]),
    )
    run.line("importing")
    run.send(signal.SIGTERM)
    assert run.code() == 143


def test_forks_die_with_a_launcher_that_is_killed(stage: Stage) -> None:
    run = start(stage, "time.sleep(600)")
    _, fork = forked(run)
    (server,) = fork_server_pids(run.pid)
    run.send(signal.SIGKILL)
    run.code()
    wait_until(lambda: not is_alive(fork["pid"]) and not is_alive(server), "something outlived its launcher")


def test_it_can_be_turned_off(stage: Stage) -> None:
    script = stage.script("import torch, time\nprint('runs', flush=True)\ntime.sleep(1)")
    run = stage.launch("--no-fork-server", script, DDP_FORK_SERVER="0.01")
    run.line("^runs")
    assert fork_server_pids(run.pid) == []
    assert run.code() == 0


def test_a_script_without_torch_pays_for_no_fork_server(stage: Stage) -> None:
    script = stage.script(
        "import time\nprint('runs', flush=True)\ntime.sleep(2)\nprint('still', flush=True)\ntime.sleep(9)"
    )
    run = stage.launch(script, DDP_FORK_SERVER="0.01")
    run.line("^still")
    assert fork_server_pids(run.pid) == []
