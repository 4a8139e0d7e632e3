"""Every way people start a script, from the arguments it expects to who starts the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.local.launch.preflight_namespaces import needs_namespaces
from tests.support.launch_harness import LAUNCH, LOOP, Stage, is_alive, wait_until
from tests.support.ports import free_port

OLD_SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument({names}, type=int, required=True)
parser.add_argument("data")
parser.add_argument("--lr", type=float)
args = parser.parse_args()
print(f"rank={{os.environ['RANK']}} local_rank={{args.local_rank}} {{args.data}} {{args.lr}}\\n", end="")
"""


@pytest.mark.parametrize(
    ("names", "spelling"), [('"--local_rank"', "local_rank"), ('"--local-rank", "--local_rank"', "--local-rank")]
)
def test_a_script_that_expects_its_local_rank_as_an_argument_gets_it(stage: Stage, names: str, spelling: str) -> None:
    script = stage.script(OLD_SCRIPT.format(names=names))
    run = stage.launch("--nproc_per_node=2", f"--pass-local-rank={spelling}", script, "folder", "--lr", "0.5")
    assert run.code() == 0
    assert {line for line in run.lines if "local_rank" in line} == {
        f"rank={rank} local_rank={rank} folder 0.5" for rank in (0, 1)
    }


def test_a_command_line_of_the_launch_module_runs_as_it_is(stage: Stage) -> None:
    """Arguments of ``python -m torch.distributed.launch`` in old scripts, with --use_env."""
    script = stage.script("import os, sys\nprint(' '.join([os.environ['LOCAL_RANK'], *sys.argv[1:]]) + '\\n', end='')")
    run = stage.launch("--nproc_per_node=2", "--use_env", script, "--epochs", "3")
    assert run.code() == 0
    assert {"0 --epochs 3", "1 --epochs 3"} <= set(run.lines)


def test_two_workers_of_volcengine_need_no_flags(stage: Stage) -> None:
    script = stage.script("import os\nprint('rank {RANK} of {WORLD_SIZE}\\n'.format(**os.environ), end='')")
    variables = {
        "MLP_WORKER_NUM": "2",
        "MLP_WORKER_GPU": "2",
        "MLP_WORKER_0_HOST": "127.0.0.1",
        "MLP_WORKER_0_PORT": str(free_port()),
    }
    runs = [stage.launch(script, **variables, MLP_ROLE_INDEX=str(index)) for index in (0, 1)]
    assert [run.code() for run in runs] == [0, 0]
    lines = {line for run in runs for line in run.lines if line.startswith("rank ")}
    assert lines == {f"rank {rank} of 4" for rank in range(4)}
    assert "--nnodes 2 (MLP_WORKER_NUM), --node-rank 1 (MLP_ROLE_INDEX)" in runs[1].output


def test_a_static_launch_whose_node_fails_ends_with_the_code_of_its_script(stage: Stage, tmp_path: Path) -> None:
    """Its nodes cannot hear each other: the other one learns of the loss from its own collective, or from its user."""
    script = stage.script(
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    flags = ["--nnodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(free_port()), "--max-restarts", "2"]
    first, second = (stage.launch(*flags, "--node_rank", str(rank), script) for rank in (0, 1))
    assert second.code() == 7
    assert "--max-restarts 2 has no effect in a static launch, whose nodes cannot agree on a restart" in second.output
    assert "Rank 1 on " in second.output
    first.line("^up")
    first.process.terminate()
    assert first.code() == 143


SPAWNS = """
import os, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    generation = os.environ["DDP_GENERATION"]
    print(f"spawned={rank} generation={generation} sum={total.item():.0f} pid={os.getpid()}", flush=True)
    dist.barrier()
    if generation == "1":
        time.sleep(600)
    dist.destroy_process_group()

if __name__ == "__main__":
    print(f"parent={os.getpid()} generation={os.environ['DDP_GENERATION']}", flush=True)
    mp.spawn(work, args=(2,), nprocs=2)
"""


def test_a_script_that_spawns_its_own_ranks_is_started_again_and_leaves_nobody_behind(stage: Stage) -> None:
    run = stage.launch("--max-restarts", "1", stage.script(SPAWNS))
    spawned = [int(run.line(rf"spawned={rank} generation=1 sum=1 pid=(\d+)")[1]) for rank in (0, 1)]
    subprocess.run(["kill", "-9", run.line(r"parent=(\d+) generation=1")[1]], check=True)
    spawned += [int(run.line(rf"spawned={rank} generation=2 sum=1 pid=(\d+)")[1]) for rank in (0, 1)]
    assert run.code() == 0
    assert not [pid for pid in spawned if is_alive(pid)]


ASKED = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
"""Puts a file in the place of the names that are known here, for one command."""


class _Asked:
    """Write end of a pipe from which a name lookup reads; opening it blocks until a lookup starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __bool__(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


@needs_namespaces
def test_a_static_launch_whose_name_server_is_silent_can_be_stopped(stage: Stage) -> None:
    hosts = stage.folder / "hosts"
    os.mkfifo(hosts)
    flags = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "first.example.com", "--master-port", "29500"]
    command = [*LAUNCH, *flags, stage.script(LOOP), stage.done()]
    run = stage.run(["unshare", "-m", "sh", "-ec", ASKED, "sh", str(hosts), *command])
    with closing(_Asked(hosts)) as request:
        wait_until(lambda: bool(request), "the name was not looked up")
        run.send(signal.SIGTERM)
        assert run.code() == 143  # while the answer is still to come
