"""Wrong input and misbehaving scripts: a message, the right exit code, no process left behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.launch_harness import LAUNCH, LOOP, Running, Stage, is_alive, wait_until


def elastic(stage: Stage, endpoint: str, conf: str = "join_timeout=1", **env: str) -> Running:
    flags = ["--nnodes", "2", "--rdzv-backend", "ddp", "--rdzv-endpoint", endpoint, "--rdzv-id", "run"]
    return stage.launch(*flags, "--rdzv-conf", conf, stage.script(LOOP), stage.done(), DDP_POD_NAME="w-0", **env)


def ours(run: Running) -> list[str]:
    assert "Traceback" not in run.output
    return [line.removeprefix("ddp-launch: ") for line in run.lines if line.startswith("ddp-launch: ")]


def test_an_endpoint_that_does_not_resolve_is_named(stage: Stage) -> None:
    run = elastic(stage, "store.invalid:29400")
    assert run.code() == 170
    (sentence,) = ours(run)
    assert sentence.startswith(
        "The store at store.invalid:29400 could not be reached for 1 s: its name does not resolve ("
    )


def test_an_endpoint_where_something_else_listens_is_told_from_a_store(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        run = elastic(stage, f"127.0.0.1:{other.getsockname()[1]}")
        for _ in range(2):
            peer, _ = other.accept()
            with peer:
                assert peer.recv(1 << 16)
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        assert run.code() == 170
    assert "the server there is not a store of this run" in ours(run)[-1]


def test_a_store_that_stays_away_is_spoken_of_before_patience_ends(stage: Stage) -> None:
    run = elastic(stage, f"127.0.0.1:{stage.port}", conf="join_timeout=600")
    run.line(r"cannot be reached yet: connection refused\. Gives up at \d\d:\d\d:\d\d, in 59\d s\.")
    run.send(signal.SIGTERM)
    assert run.code() == 143


def test_another_job_with_the_same_run_id_is_told_what_runs_there(stage: Stage, tmp_path: Path) -> None:
    stage.store()
    first = stage.agent(0, stage.script(LOOP, "train.py"), stage.done(), nnodes="1:3")
    first.line("generation=1 .*runs")
    other, log = stage.script("raise SystemExit(9)", "serve.py"), tmp_path / "log"
    second = stage.agent(1, other, nnodes="1:3", DDP_TERMINATION_LOG=str(log))
    assert second.code() == 170
    (sentence,) = ours(second)
    assert sentence == (
        f"The run 'run' is in use by another job, which runs {tmp_path}/train.py on worker-0, and this one runs "
        f"{other}; give it its own --rdzv-id and --rdzv-endpoint, or, where one job runs several programs, a "
        "--role for each."
    )
    assert json.loads(log.read_text())["pod_exit_code"] == 170
    (tmp_path / "elsewhere").mkdir()
    same = stage.script(LOOP, "elsewhere/train.py")
    third = stage.agent(2, "--tee", "3", "--log-dir", str(tmp_path / "logs"), same, stage.done(), nnodes="1:3")
    third.line("generation=2 world=2 .*runs")
    stage.finish()
    assert [first.code(), third.code()] == [0, 0]
    assert "generation=1 stops" in first.output  # for the one that belonged to it, and not for the other


def test_nodes_that_wait_say_who_is_missing_and_when_they_give_up(stage: Stage) -> None:
    stage.store()
    program = [stage.script(LOOP), stage.done()]
    second = stage.agent(2, *program, nnodes="4")
    first = stage.agent(0, "--rdzv-conf", "join_timeout=4", *program, nnodes="4")
    for run in (first, second):
        run.line(
            r"2 nodes ready \(worker-0, worker-2\), missing: worker-1, worker-3, waiting for a group of at least 4\. "
            r"Gives up at \d\d:\d\d:\d\d, in \d+ s\."
        )
    assert first.code() == 170
    assert ", 2 nodes ready (worker-0, worker-2), missing: worker-1, worker-3; raise" in ours(first)[-1]
    second.send(signal.SIGTERM)
    assert second.code() == 143


def test_survivors_that_are_too_few_say_who_was_lost(stage: Stage) -> None:
    stage.store()
    survivor, victim = (stage.agent(index, stage.script(LOOP), stage.done()) for index in (0, 1))
    victim.line("generation=1 .*runs")
    victim.send(signal.SIGKILL)
    survivor.line(r"1 node ready \(worker-0\), missing: worker-1, waiting for a group of at least 2\.")


def test_more_workers_than_gpus_are_started_with_a_word_of_what_will_fail(stage: Stage) -> None:
    run = stage.launch("--nproc-per-node", "3", stage.script("pass"), CUDA_VISIBLE_DEVICES="0,1")
    assert run.code() == 0
    assert "3 workers share 2 GPUs: those that choose theirs by LOCAL_RANK will fail from rank 2 on" in run.output


def test_more_workers_than_gpus_that_want_one_each_are_not_started(stage: Stage) -> None:
    run = stage.launch(
        "--nproc-per-node", "3", "--virtual-local-rank", stage.script("pass"), CUDA_VISIBLE_DEVICES="0,1"
    )
    assert run.code() == 2
    assert "--virtual-local-rank gives each of 3 workers a separate GPU, and this node has 2 GPUs;" in ours(run)[-1]


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, f"daemon pid={os.getpid()}\\n".encode())
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(0.2)
"""


def test_a_daemon_is_gone_before_the_script_is_started_again(stage: Stage) -> None:
    script = stage.script(DAEMON + "raise SystemExit(5 if os.environ['DDP_GENERATION'] == '1' else 0)")
    run = stage.launch("--max-restarts", "1", script)
    run.line("daemon[^$]*")
    assert run.process.wait(60) == 0  # its stdout stays open as long as the second daemon has it
    wait_until(lambda: run.output.count("daemon pid=") == 2, "the second daemon was not heard of")
    first, second = (int(line.partition("=")[2]) for line in run.lines if line.startswith("daemon"))
    assert not is_alive(first)
    assert is_alive(second)  # what a script leaves that ends well, it meant
    subprocess.run(["kill", "-9", str(second)], check=True)


@pytest.mark.parametrize("flags", [[], ["--tee", "3"]])
def test_a_script_may_close_its_streams(stage: Stage, flags: list[str]) -> None:
    # Python itself complains of a descriptor that is gone, with 120.
    run = stage.launch(*flags, stage.script("import os, time\nos.close(1); os.close(2)\ntime.sleep(0.2)\nos._exit(0)"))
    assert run.code() == 0
    assert "Traceback" not in run.output


@pytest.mark.parametrize("closed", [">&- 2>&-", "2>&1 | head -n 1"])
def test_a_launcher_whose_own_streams_are_closed_trains_on(stage: Stage, tmp_path: Path, closed: str) -> None:
    script = stage.script(
        "import os, pathlib, sys\n"
        "if os.environ['DDP_GENERATION'] == '1': sys.exit(3)\n"
        f"pathlib.Path({str(tmp_path / 'trained')!r}).touch()"
    )
    command = " ".join([*LAUNCH, "--max-restarts", "1", script, closed])
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=False, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "trained").exists()


def test_a_script_that_ignores_sigterm_is_killed_and_named(stage: Stage) -> None:
    script = stage.script(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(f'pid={os.getpid()}', flush=True)\ntime.sleep(600)"
    )
    run = stage.launch("--shutdown-timeout", "1", script)
    worker = int(run.line(r"pid=(\d+)")[1])
    run.send(signal.SIGTERM)
    assert run.code() == 143
    assert not is_alive(worker)
    assert "Killing what did not stop in time: local rank 0." in ours(run)


def test_another_pod_of_the_same_name_takes_over_when_the_former_one_is_gone(stage: Stage) -> None:
    stage.store()
    script = stage.script(LOOP)
    old = stage.agent(0, script, stage.done(), nnodes="1")
    old.line("generation=1 .*runs")
    new = stage.agent(0, script, stage.done(), nnodes="1")
    new.line("Another agent named worker-0 is connected, and this one takes its place when that one leaves")
    assert "generation=1 stops" not in old.output
    old.send(signal.SIGKILL)
    new.line("generation=2 .*runs")
    stage.finish()
    assert new.code() == 0
