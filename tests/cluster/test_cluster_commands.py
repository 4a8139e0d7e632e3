"""The commands on a real cluster, most of them on one job: exec, logs, restart, scale, clone, prune."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest

from kubectl_ddp.code.archive import PART_BYTES
from tests.cluster.live_cluster import Namespace, until
from tests.support.programs import captured
from tests.support.terminals import typed_into

SIZE = ("--cpu", "300m", "--memory", "512Mi", "--shm", "32Mi", "--nproc", "1")
SCRIPT = """\
import os, pathlib, signal, time
import lib.word
from ddp_trainer.metrics import attach
meter = attach.meter()
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
me = f"{os.environ['DDP_POD_NAME']}/{os.getpid()}/{time.time_ns()}"
pathlib.Path("written").touch()
number = 0
while not stops and not os.path.exists("/tmp/enough"):
    print(lib.word.WORD, me, number, flush=True)
    number += 1
    time.sleep(0.01)
print("end", me, number, flush=True)
raise SystemExit(143 if stops else 0)
"""
BIN = Path(sys.executable).parent


def environ_of(space: Namespace) -> dict[str, str]:
    """Return an environment in which the plugin is on PATH."""
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(space.home)}


def kubectl(space: Namespace, *words: str) -> subprocess.CompletedProcess[str]:
    shell = {"_": str(shutil.which("kubectl"))}  # shells set it to the program that they start
    return captured(["kubectl", *words], env=environ_of(space) | shell, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "lib").mkdir(parents=True)
    (root / "count.py").write_text(SCRIPT)
    (root / "lib" / "word.py").write_text("WORD = 'line'\n")
    (root / "table.bin").write_bytes(random.Random(0).randbytes(2 * PART_BYTES))
    return root


def count(space: Namespace, project: Path, nnodes: str) -> None:
    """Start a job of two nodes whose code is a directory; it counts until a file tells it to stop."""
    words = ("submit", "count.py", "--code", str(project), "--name", "count", "--image", space.image)
    done = space.ddp(*words, "--nnodes", nnodes, *SIZE).ok()
    assert "Code: 3 files, packed as " in done.err
    space.ddp("wait", "count", "--for=world-size=2", "--timeout", "2m").ok()


@pytest.mark.timeout(300)
def test_following_through_a_killed_worker_and_a_deleted_pod_no_line_comes_twice_and_none_is_lost(
    space: Namespace, project: Path, tmp_path: Path
) -> None:
    output = tmp_path / "told"
    count(space, project, "2")  # not 1:2: every group has two ranks, so each group adds two processes
    with output.open("w") as file:
        words = ("logs", "-n", space.name, "count", "-f", "--rank", "all")
        following = subprocess.Popen([BIN / "kubectl-ddp", *words], stdout=file, env=environ_of(space))
    until("lines of both workers", lambda: len(_counted(output.read_text())) == 2)
    until("two ranks in the status", lambda: len(_ranks(space)) == 2)
    killed = space.ddp("exec", "count", "--rank", "1", "--", "sh", "-c", "ls written && kill -9 $RANK_PID").ok()
    assert killed.out == "written\n"
    assert re.match(r"Rank 1: pod count-worker-\d, local rank 0, process \d+\.\n", killed.err)

    until("a group without it", lambda: _world(space) == 2 and _restarts(space) >= 1)
    until("lines of the next two workers", lambda: len(_counted(output.read_text())) == 4)
    victim = space.pods()[0]
    space.api.delete(space.path("v1", "pods", victim["metadata"]["name"]), uid=victim["metadata"]["uid"])
    until("another pod", lambda: victim["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in space.pods()})
    until("lines of the last two workers", lambda: len(_counted(output.read_text())) == 6)
    until("two ranks in the status again", lambda: len(_ranks(space)) == 2)
    for rank in ("1", "0"):
        space.ddp("exec", "count", "--rank", rank, "--", "touch", "/tmp/enough").ok()
    space.ddp("wait", "count", "--timeout", "2m").ok()
    assert following.wait(timeout=120) == 0

    processes = _counted(output.read_text())
    for process, (numbers, _) in processes.items():
        assert numbers == list(range(len(numbers))), f"{process} is torn"
    ended = {process: (len(numbers), end) for process, (numbers, end) in processes.items() if end is not None}
    assert len(processes) - len(ended) == 1, "only the worker that SIGKILL ended says nothing of its end"
    assert all(count == end for count, end in ended.values())
    folded = space.ddp("logs", "count", "--rank", "all", "--dedup", "--tail", "20", "-o", "json").ok().out
    assert {json.loads(line)["kind"] for line in folded.splitlines()} == {"LogLine"}
    _end_like_this(space)


def _end_like_this(space: Namespace) -> None:
    """Run the commands that apply to a finished job."""
    happened = space.ddp("events", "count", "-o", "json").ok().json["items"]
    assert {"Scheduled", "Started", "Killing"} <= {one["reason"] for one in happened}
    assert {"pod/count-worker-0", "pod/count-worker-1"} <= {one["object"] for one in happened}
    assert [one["time"] for one in happened] == sorted(one["time"] for one in happened)
    assert space.ddp("restart", "count").code == 2
    other = space.ddp("clone", "count", "--name", "other", "--nnodes", "1", "--dry-run=client", "-o", "json").ok().json
    archive = [item["binaryData"] for item in other["items"] if item["kind"] == "ConfigMap"]
    own = space.api.items(space.path("v1", "configmaps"), labelSelector="ddp.dev/job=count")[0]
    assert archive == [item["binaryData"] for item in own]
    assert [item["immutable"] for item in own] == [True] * 3
    assert space.ddp("prune", "--older-than", "1h", "--dry-run").ok().out == ""
    assert space.ddp("prune", "--yes").ok().out == f"job count deleted {_place(space)}\n"
    until("nothing left", lambda: not space.left())


def _place(space: Namespace) -> str:
    """Namespace and context as commands print them."""
    return f"in namespace '{space.name}' of context '{space.api.connection.where}'"


def _world(space: Namespace) -> int:
    return int(space.ddp("status", "count", "-o", "json").ok().json["world_size"] or 0)


def _ranks(space: Namespace) -> list[object]:
    found: list[object] = space.ddp("status", "count", "-o", "json").ok().json["ranks"]
    return found


def _restarts(space: Namespace) -> int:
    return int(sum(space.ddp("status", "count", "-o", "json").ok().json["restarts"].values()))


def _counted(text: str) -> dict[str, tuple[list[int], int | None]]:
    """Process → the numbers that it printed, in order, and the total that it printed at its end."""
    numbers: dict[str, list[int]] = defaultdict(list)
    ends: dict[str, int] = {}
    for word, process, number in re.findall(r"^\[rank\d+\] (line|end) (\S+) (\d+)$", text, re.MULTILINE):
        if word == "end":
            assert process not in ends, f"{process} ended twice"
            ends[process] = int(number)
        else:
            numbers[process].append(int(number))
    return {process: (numbers[process], ends.get(process)) for process in numbers}


def _offered(space: Namespace, *words: str) -> set[str]:
    """Return the values that completion offers after ``exec``; none if the API server did not answer in time."""
    lines = kubectl(space, "__complete", "ddp", "exec", "-n", space.name, *words, "").stdout.splitlines()
    assert lines.pop() == ":4"
    return {line.partition("\t")[0] for line in lines}


@pytest.mark.timeout(300)
def test_a_job_is_reached_scaled_and_restarted_under_the_real_kubectl(space: Namespace, project: Path) -> None:
    count(space, project, "1:2")
    if shutil.which("kubectl") is None:
        pytest.skip("These commands are kubectl's work, and it is not on PATH.")
    there = kubectl(space, "ddp", "list", "-n", space.name, "-o", "name")
    assert (there.returncode, there.stdout) == (0, "pytorchjob.kubeflow.org/count\n")
    assert "kubectl ddp list" in kubectl(space, "ddp", "list", "--help").stdout
    assert until("the jobs offered", lambda: _offered(space)) == {"count"}
    until("the ranks offered", lambda: {"0", "1"} <= _offered(space, "count", "--rank"))
    assert (
        kubectl(space, "ddp", "exec", "-n", space.name, "count", "--rank", "0", "--", "sh", "-c", "exit 7").returncode
        == 7
    )

    _shell_on_a_terminal(space)
    _metrics_through_a_tunnel(space)
    rows = {row["key"]: row for row in space.ddp("config", "-o", "json").ok().json["items"]}
    assert (rows["namespace"]["value"], rows["namespace"]["from"]) == (space.name, "--namespace")
    assert rows["engine auto"]["value"] == "pytorchjob"
    outsider = space.ddp("list", "--as", f"system:serviceaccount:{space.name}:nobody")
    assert outsider.code == 5, outsider.err

    scaled = space.ddp("scale", "count", "--nnodes", "1")
    assert (scaled.code, scaled.out) == (0, f"job count scaled to 1 node {_place(space)}\n")
    assert "2 → 1 nodes, 2 → 1 ranks" in scaled.err
    assert "The world has 1 rank after " in scaled.err
    before = {pod["metadata"]["uid"] for pod in space.pods()}
    restarted = space.ddp("restart", "count", "--wait", "--timeout", "2m")
    assert (restarted.code, restarted.out) == (0, f"job count restarted {_place(space)}\n")
    assert "from the beginning, since it has no checkpoint claim" in restarted.err
    assert not before & {pod["metadata"]["uid"] for pod in space.pods() if "deletionTimestamp" not in pod["metadata"]}


def _shell_on_a_terminal(space: Namespace) -> None:
    command = ["kubectl", "ddp", "exec", "-n", space.name, "count", "--rank", "1"]
    code, output = typed_into(command, b"echo from-$((40 + RANK)); tty; exit 5\n", environ_of(space))
    assert code == 5
    assert b"from-41" in output
    assert b"/dev/pts/" in output


def _metrics_through_a_tunnel(space: Namespace) -> None:
    words = ("port-forward", "-n", space.name, "count", "--rank", "1", ":metrics")
    with subprocess.Popen(
        [BIN / "kubectl-ddp", *words], stdout=subprocess.PIPE, text=True, env=environ_of(space)
    ) as tunnel:
        assert tunnel.stdout is not None
        address = re.search(r"Forwarding from (127\.0\.0\.1:\d+) -> 9464", tunnel.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(f"http://{address[1]}/metrics", timeout=20) as answer:
            assert b'ddp_rank_up{ddp_job="count",rank="1"} 1' in answer.read()
        tunnel.terminate()
