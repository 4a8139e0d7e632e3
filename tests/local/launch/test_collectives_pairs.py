"""``--pairs`` names the node that a test slows down or stops, with real gloo ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from ddp_collectives.flags import parse
from tests.support.ports import free_port

WORKER = "import runpy; runpy.run_module('ddp_collectives.worker', run_name='__main__')"
SLOW_WORKER = f"""
import time
import torch.distributed as dist

all_reduce = dist.all_reduce
dist.all_reduce = lambda message: (time.sleep(1.0), all_reduce(message))
{WORKER}
"""
NODES = 4
BAD = 2
FLAGS = ["--pairs=3", "--sizes=4MiB", "--repeats=3", "--warmup=1", "--timeout=60"]


class Group:
    """Ranks that each are a node, without a launcher, which would end all with the first."""

    def __init__(self, flags: Sequence[str], folder: Path, programs: Sequence[str]) -> None:
        port = free_port()
        self.folder = folder
        self.ranks = [self._start(rank, program, flags, port) for rank, program in enumerate(programs)]

    def _start(self, rank: int, program: str, flags: Sequence[str], port: int) -> subprocess.Popen[str]:
        place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": NODES, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
        environ = {**os.environ, **{name: str(value) for name, value in place.items()}}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        environ |= {"TORCHELASTIC_ERROR_FILE": str(self.folder / f"error-{rank}.json")}
        return subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(asdict(parse(flags)[0]))],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def empty(self) -> None:
        """Return when all ranks have met, and the first round is about to begin."""
        stdout = self.ranks[0].stdout
        assert stdout
        assert stdout.readline().startswith(f"{NODES} nodes, gloo; all_reduce of 4 MiB between two nodes at a time")

    def outcome(self) -> tuple[int, str, str]:
        """Exit code, output and sentence of rank 0."""
        out, _ = self.ranks[0].communicate(timeout=240)
        error = self.folder / "error-0.json"
        sentence = json.loads(error.read_text())["message"]["message"] if error.exists() else ""
        return self.ranks[0].returncode, out, sentence

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Group]]:
    groups: list[Group] = []
    yield groups
    for group in groups:
        group.close()


def group(started: list[Group], folder: Path, *flags: str, programs: Sequence[str] = (WORKER,) * NODES) -> Group:
    made = Group([*FLAGS, *flags], folder, programs)
    started.append(made)
    return made


def test_nodes_that_are_alike_are_not_suspected(started: list[Group], tmp_path: Path) -> None:
    code, out, sentence = group(started, tmp_path, "--slow-below=1%", "-o", "json").outcome()
    assert (code, sentence) == (0, "")
    document = json.loads(out)
    assert (document["apiVersion"], document["kind"]) == ("preflight.ddp/v1", "Pairs")
    assert sorted(tuple(pairing["nodes"]) for pairing in document["pairings"]) == [
        *[(0, 1), (0, 2), (0, 3)],
        *[(1, 2), (1, 3)],
        (2, 3),
    ]
    assert {pairing["verdict"] for pairing in document["pairings"]} == {"good"}
    assert document["suspicions"] == []
    assert [process.wait(30) for process in started[0].ranks] == [0] * NODES


@pytest.mark.parametrize("signal_number", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_node_that_stops_or_dies_is_named_and_no_other(
    started: list[Group], tmp_path: Path, signal_number: signal.Signals
) -> None:
    ranks = group(started, tmp_path, "--slow-below=1%", "--pair-timeout=15")
    ranks.empty()
    ranks.ranks[BAD].send_signal(signal_number)
    code, out, sentence = ranks.outcome()
    assert code == 1, out
    assert sentence.startswith(f"Node {BAD} (")
    assert sentence.endswith(" fails with every partner, and they do well without it: take it out")
    assert [line.split()[0] for line in out.splitlines() if " failed: " in line] == ["1", "2", "3"]


def test_a_node_that_is_slow_is_named_and_no_other(started: list[Group], tmp_path: Path) -> None:
    programs = [SLOW_WORKER if node == BAD else WORKER for node in range(NODES)]
    code, out, sentence = group(started, tmp_path, "--slow-below=5%", programs=programs).outcome()
    assert code == 3, out
    assert sentence.startswith(f"Node {BAD} (")
    assert sentence.endswith(" is slow with every partner, and they do well without it: take it out")
