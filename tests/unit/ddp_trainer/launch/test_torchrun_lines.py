"""Command lines of torchrun from public repositories mean the same to ``ddp-launch``, or differ as documented.

``torchrun_lines.tsv`` has a line and its source per row. Arguments of scripts are shortened, and placeholders are
variables.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch.distributed.launch as stock_launch
import torch.distributed.run as stock_run
from torch.distributed.launcher.api import LaunchConfig

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.host.endpoint import is_this_host
from ddp_trainer.launch.launch_plan import make_plan
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.net.addresses import split_endpoint

LINES: Final = [row.split("\t") for row in Path(__file__).with_name("torchrun_lines.tsv").read_text().splitlines()]
NO_RUN_ID: Final = "none|[0-9a-f-]{32,36}"
"""The default, and a random one."""
VALUES: Final = {
    "NGPU": "2",
    "NUM_NODES": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "node-0.example.com",
    "MASTER_PORT": "23456",
    "HOST_NODE_ADDR": "node-0.example.com:29400",
    "JOB_ID": "4711",
    "CONFIG": "config.yaml",
    "WORKSPACE": ".",
}


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Settings of a launcher that are read from a command line."""

    nodes: tuple[int, int]
    workers: int
    restarts: int
    role: str
    run_id: str
    """Empty if the line names none."""
    node_rank: int | None
    """Rank of the node; absent if the rendezvous assigns the ranks."""
    meet_at: tuple[str, int] | None
    """Host and port of the rendezvous; None for one node whose port is not named."""
    command: tuple[str, ...]
    streams: tuple[Any, Any]
    """Streams that go to files, and to files and the console."""


def as_loopback(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def arguments_of(line: str) -> tuple[str, list[str]]:
    """Return the name of the launcher's module and the line's words after it."""
    words = shlex.split(os.path.expandvars(line))
    if words[0] == "torchrun":
        return "torch.distributed.run", words[1:]
    at = words.index("-m")
    return words[at + 1], words[at + 2 :]


def provide(arguments: argparse.Namespace) -> None:
    """Make the script, the package or the program that a line starts."""
    script = Path(arguments.training_script)
    if arguments.module:
        Path(str(script).partition(".")[0]).mkdir(exist_ok=True)
    elif not arguments.no_python or "/" in arguments.training_script:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch(0o755)


def of_torchrun(module: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Meaning:
    """Return the settings of torch's launcher at the start of its agent."""
    seen: list[tuple[LaunchConfig, tuple[str, ...]]] = []

    def launch(config: LaunchConfig, entrypoint: str) -> Any:
        return lambda *rest: seen.append((config, (entrypoint, *rest)))

    monkeypatch.setattr(stock_run, "elastic_launch", launch)
    stock: Any = stock_launch if module == "torch.distributed.launch" else stock_run
    arguments = stock.parse_args(words)
    provide(arguments)
    (stock.launch if stock is stock_launch else stock_run.run)(arguments)
    ((config, command),) = seen
    is_static, is_alone = config.rdzv_backend == "static", config.max_nodes == 1
    host, port = split_endpoint(config.rdzv_endpoint, 29400)
    return Meaning(
        nodes=(config.min_nodes, config.max_nodes),
        workers=config.nproc_per_node,
        restarts=config.max_restarts,
        role=config.role,
        run_id="" if re.fullmatch(NO_RUN_ID, config.run_id) else config.run_id,
        node_rank=config.rdzv_configs["rank"] if is_static and not is_alone else None,
        meet_at=None if is_alone and not is_static and is_this_host(host) else (as_loopback(host), port),
        command=command,
        streams=(config.logs_specs._redirects.value, config.logs_specs._tee.value),
    )


def of_ddp_launch(words: list[str]) -> Meaning:
    plan = make_plan(parse(words, dict(os.environ)), dict(os.environ))
    endpoint, python = plan.endpoint, (plan.program.python, "-u")
    kinds = {"command": (), "script": python, "module": (*python, "-m")}
    alone_at = ("127.0.0.1", plan.fixed_port) if plan.fixed_port else None
    return Meaning(
        nodes=(plan.policy.min_nodes, plan.policy.max_nodes),
        workers=plan.node.local_world_size,
        restarts=plan.policy.max_restarts,
        role=plan.node.role,
        run_id="" if re.fullmatch(NO_RUN_ID, plan.arguments.rdzv_id) else plan.arguments.rdzv_id,
        node_rank=(plan.node.index or 0) if plan.is_static and plan.policy.max_nodes > 1 else None,
        meet_at=(as_loopback(endpoint.host), endpoint.port) if endpoint else alone_at,
        command=(*kinds[plan.program.kind], plan.program.target, *plan.program.arguments),
        streams=(plan.logs.redirects.value, plan.logs.tee.value),
    )


@pytest.fixture(autouse=True)
def _on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without GPUs, with the variables of the lines."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**VALUES, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("line", "source"), LINES)
def test_a_public_command_line_means_the_same(line: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, words = arguments_of(line)
    if "--nproc_per_node=gpu" in words:
        with pytest.raises(ValueError, match="Cuda is not available"):
            of_torchrun(module, words, monkeypatch)
        with pytest.raises(LaunchError, match="no NVIDIA GPU"):
            of_ddp_launch(words)
        return
    stock = of_torchrun(module, words, monkeypatch)
    if "c10d" in line and "localhost" not in line:
        # Several machines meet in a store, which needs a secret: docs/launcher.md, "The secret of a run".
        with pytest.raises(LaunchError, match=Env.SECRET_FILE):
            of_ddp_launch(words)
        secret = Path("secret")
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        monkeypatch.setenv(Env.SECRET_FILE, str(secret))
    if module == "torch.distributed.launch" and "--use_env" not in words:
        # The local rank as an argument has a flag: docs/launcher.md, "Every way to start".
        words = ["--pass-local-rank", "local-rank", *words]
    assert of_ddp_launch(words) == stock, source
