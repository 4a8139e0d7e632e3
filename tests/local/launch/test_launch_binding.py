"""A worker that is bound to processors runs on these and no others, its threads and children too."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ddp_trainer.launch.host.environment import Launch
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.logs import LogSpec
from ddp_trainer.launch.workers.worker_group import Program, Workers
from tests.support.launch_harness import Stage
from tests.support.launch_simulation import place_of

ONE = min(os.sched_getaffinity(0))


async def run_bound(script: Path, folder: Path) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    workers = Workers(
        children=Children(loop),
        program=Program(kind="script", target=str(script)),
        launch=Launch(run_id="run", local_world_size=1, max_restarts=0, cpus=(frozenset({ONE}),)),
        logs=LogSpec(),
        log_dir=folder,
        environment=dict(os.environ),
        fork_server=None,
        exited=lambda _, returncode: ended.set_result(returncode),
        on_message=lambda _, __: None,
    )
    node = Node(token="t", name="node", local_world_size=1)
    group = Generation(number=1, fence=1, nodes=(node,), master_address="127.0.0.1", master_port=1)
    workers.start(place_of(group, node.token))
    return await ended


def test_a_worker_runs_on_the_processors_it_is_bound_to(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, subprocess, sys\n"
        "ask = [sys.executable, '-c', 'import os; print(os.sched_getaffinity(0))']\n"
        "child = subprocess.check_output(ask, text=True)\n"
        f"pathlib.Path({str(tmp_path / 'told')!r}).write_text(str(os.sched_getaffinity(0)) + child)"
    )
    assert asyncio.run(run_bound(script, tmp_path / "logs")) == 0
    assert (tmp_path / "told").read_text() == f"{{{ONE}}}{{{ONE}}}\n"


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has GPUs to bind to")
def test_a_binding_without_gpus_is_one_sentence(stage: Stage) -> None:
    run = stage.launch("--numa-binding", "node", stage.script("pass"))
    assert run.code() == 2
    assert "--numa-binding node keeps each worker near its GPU, and this machine shows 0 for 1 workers" in run.output
