"""A launch that looks at its nodes before it starts workers, and ddp-launch's subcommand."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fake_nvml
from tests.local.launch.preflight_namespaces import PORT, Side, needs_namespaces, pair
from tests.support.launch_harness import LAUNCH, LOOP, Running, stage_of
from tests.support.programs import captured

HELLO = "import os; os.write(1, 'rank {RANK} of {WORLD_SIZE} runs\\n'.format(**os.environ).encode())"
"""Prints with one write, so that the lines of two ranks cannot mix."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "hello.py"
    path.write_text(HELLO)
    return path


def run(*command: str, few_files: bool = False, **kwargs: object) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

    return captured([*LAUNCH, *command], timeout=120, preexec_fn=lower if few_files else None, **kwargs)


def test_a_warning_prints_the_table_and_starts_the_workers(script: Path) -> None:
    done = run("--standalone", "--nproc-per-node", "2", "--preflight", "warn", str(script), few_files=True)
    assert done.returncode == 0
    assert "FAIL  open-files" in done.stderr
    assert done.stderr.count("generation 1:") == 1
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 runs", "rank 1 of 2 runs"]


def test_a_strict_preflight_that_fails_starts_no_worker_and_says_why(script: Path, tmp_path: Path) -> None:
    environment = {"DDP_RUN_DIR": str(tmp_path / "run"), "DDP_PREFLIGHT": "strict", "PATH": ""}
    # Restarts are allowed, and not wasted on a node that stays unfit.
    done = run("--standalone", "--max-restarts", "3", str(script), few_files=True, env=environment)
    assert (done.returncode, done.stdout) == (94, "")
    assert "failed first, it exited with code 94: The preflight's check open-files fails." in done.stderr
    error = json.loads((tmp_path / "run" / "error.json").read_text())
    assert error["exit_code"] == 94
    assert "may open 512 files" in error["message"]


def test_a_launcher_that_waits_in_its_preflight_stops_when_told(script: Path) -> None:
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-port", "0", "--preflight", "strict"]
    with Running([*LAUNCH, *flags, str(script)]) as agent:
        agent.line("generation 1: 2 workers")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 143


def test_a_script_that_is_called_preflight_is_started_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "preflight").write_text(HELLO)
    done = run("./preflight", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1 runs\n")
    done = run("--nproc-per-node", "1", "preflight", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1 runs\n")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--nnodes", "2"], "More than one node needs --rdzv-endpoint HOST:PORT, the same on all of them"),
        (["nosuch.py"], "The script 'nosuch.py' cannot be read"),
        (["--timeout", "0"], "Argument --timeout: '0' is not a number of seconds above 0; --help lists the flags."),
    ],
)
def test_flags_that_cannot_be_meant_get_one_sentence(flags: list[str], sentence: str, tmp_path: Path) -> None:
    done = run("preflight", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddp-launch preflight: {sentence}")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def nvml(tmp_path: Path) -> str:
    """A folder with a library of that name, for LD_LIBRARY_PATH."""
    (tmp_path / "lib").mkdir()
    return str(Path(fake_nvml.compiled(tmp_path / "lib")).parent)


def test_a_node_that_joins_later_is_taken_in_when_it_has_met_the_members(tmp_path: Path, nvml: str) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    fake_nvml.answers(tmp_path / "slow", nvmlInitWithFlags=f"gate {gate}")
    with contextlib.contextmanager(stage_of)(tmp_path) as stage:
        stage.store()
        flags = ["--preflight", "strict", stage.script(LOOP), stage.done()]
        first = stage.agent(0, *flags, nnodes="1:2")
        first.line("generation=1 world=1 .*runs")
        second = stage.agent(1, *flags, nnodes="1:2", LD_LIBRARY_PATH=nvml, FAKE_NVML=str(tmp_path / "slow"))
        second.line("Before it joins, this node holds a preflight with worker-0.")
        assert not any("stops" in line for line in first.lines)  # the driver has not said a word yet
        gate.write_text("on\n")
        second.line("NVML cannot be initialized: Driver Not Loaded")
        second.line("preflight: 2 of 2 nodes, fit to start")
        second.line("generation=2 world=2 .*runs")
        stage.finish()
        assert [first.code(), second.code()] == [0, 0]
        assert "CHECK" not in first.output[first.output.index("generation=1") :]


def test_a_node_whose_gpu_is_to_be_reset_stays_out_until_it_was(tmp_path: Path, nvml: str) -> None:
    ill = {**fake_nvml.HEALTHY, "nvmlDeviceGetRemappedRows": "0 1 1 0"}
    fake_nvml.answers(tmp_path / "ill", ill)
    fake_nvml.answers(tmp_path / "healthy", fake_nvml.HEALTHY)
    with contextlib.contextmanager(stage_of)(tmp_path) as stage:
        stage.store()
        flags = ["--preflight", "strict", stage.script(LOOP), stage.done()]
        own = {"nnodes": "1:2", "LD_LIBRARY_PATH": nvml}
        first = stage.agent(0, *flags, **own, FAKE_NVML=str(tmp_path / "healthy"))
        first.line("generation=1 world=1 .*runs")
        second = stage.agent(1, *flags, **own, FAKE_NVML=str(tmp_path / "ill"))
        why = r"The preflight's check gpu-health fails\. worker-1: GPU 0 \(NVIDIA H100 80GB HBM3\) is to be reset"
        second.line(rf"This node stays out of the run, and is looked at again in 60 s\. {why}")
        first.line(rf"worker-1 wants to join, and stays out of the run\. {why}")
        stage.finish()
        assert first.code() == 0
        assert not any("stops" in line for line in first.lines)
        assert second.code() == 0  # the run is complete without it
        assert "generation=" not in second.output


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with pair(tmp_path) as sides:
        yield sides


@needs_namespaces
def test_two_agents_with_a_firewall_between_them_start_no_worker(nodes: tuple[Side, Side], script: Path) -> None:
    a, b = nodes
    b.block("iifname eth0 tcp flags & (syn|ack) == syn reject with tcp reset")
    flags = ["launch", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"node-a:{PORT}"]
    command = [sys.executable, "-m", "ddp_trainer", *flags, "--preflight", "strict", str(script)]
    done = [(agent.communicate(timeout=150), agent.returncode) for agent in (a.start(*command), b.start(*command))]
    assert [code for _, code in done] == [94, 94]
    assert [out for (out, _), _ in done] == ["", ""]
    for (_, err), _ in done:
        assert "The preflight's check rendezvous-port fails. node-b: 10.213.77.2:" in err
    assert sum("CHECK" in err for (_, err), _ in done) == 1


@needs_namespaces
def test_a_node_that_cannot_reach_the_members_is_not_taken_in(nodes: tuple[Side, Side], tmp_path: Path) -> None:
    a, b = nodes
    script, done = tmp_path / "loop.py", tmp_path / "done"
    script.write_text(LOOP)
    flags = ["launch", "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"node-a:{PORT}"]
    command = [sys.executable, "-m", "ddp_trainer", *flags, "--preflight", "strict", str(script), str(done)]
    first = a.start(*command)
    assert first.stdout
    assert "generation=1 world=1" in first.stdout.readline()
    a.block(f"iifname eth0 tcp dport != {PORT} tcp flags & (syn|ack) == syn reject with tcp reset")
    second = b.start(*command)
    assert second.stderr
    sentence = next(line for line in second.stderr if "stays out of the run" in line)
    assert "The preflight's check rendezvous-port fails. node-a: 10.213.77.1:" in sentence
    assert "cannot be reached from node-b (refused)" in sentence
    done.touch()
    assert "generation=1 done" in first.stdout.readline()
    assert first.wait(60) == 0
