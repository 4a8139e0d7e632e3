"""Beside a rank of a local job: commands, addresses, what happened, a restart and what scaling means."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.launch_harness import wait_until
from tests.support.local_place import Typed, a_place
from tests.support.terminals import typed_into

ENDLESS = """\
import signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(143))
print('ready', flush=True)
from ddp_trainer.metrics import attach
meter = attach.meter()
while True: time.sleep(0.05)
"""
PATIENCE_SECONDS = 120.0
"""Timeout for the ranks' first report, long enough for a machine under load."""


def begin(typed: Typed, name: str) -> None:
    """Start a job of two nodes of two ranks each, and wait until all ranks report."""
    script = typed.write("endless.py", ENDLESS)
    assert typed("submit", script, "--local", "--name", name, "-j", "1:2x2").returncode == 0
    assert typed("wait", name, "--for=world-size=4", "--timeout", "100s").returncode == 0
    await_ranks(typed, name)


def ranks(typed: Typed, name: str) -> list[dict[str, Any]]:
    """Return the state of each rank so far."""
    found: list[dict[str, Any]] = json.loads(typed("status", name, "-o", "json").stdout)["ranks"]
    return found


def await_ranks(typed: Typed, name: str, counts: Callable[[dict[str, Any]], object] = bool) -> None:
    """Until four ranks count by what is known of them; by default, if anything is."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen = ranks(typed, name)
    while len([rank for rank in seen if counts(rank)]) < 4:
        assert time.monotonic() < deadline, f"of {name}, status told this last: {seen}"
        seen = ranks(typed, name)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """A shell for the jobs of a place that has a job which no test changes."""
    with a_place(tmp_path_factory.mktemp("reach") / "state") as place:
        typed = Typed(place)
        begin(typed, "digits")
        yield typed


def test_a_command_runs_beside_its_rank_and_its_exit_code_is_ours(shell: Typed) -> None:
    command = 'echo "$RANK $LOCAL_RANK $DDP_POD_NAME"; cat; grep -zo "^RANK=3" /proc/$RANK_PID/environ; exit 7'
    done = shell("exec", "digits", "--rank", "3", "-i", "--", "sh", "-c", command, stdin="piped\n")
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("3 1 digits-worker-1\npiped\n")
    assert done.stderr.startswith("Rank 3: pod digits-worker-1, local rank 1, process ")


def test_the_environment_of_a_pod_and_its_directory_are_there(shell: Typed) -> None:
    command = 'echo "$DDP_POD_NAME $(pwd -P) ${RANK-none}"'
    done = shell("exec", "digits", "--pod", "worker-1", "--", "sh", "-c", command)
    assert done.stdout == f"digits-worker-1 {shell.directory} none\n"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--rank", "9", "--", "true"), 3, "The pod of rank 9 of job 'digits' is unknown"),
        (("--pod", "worker-7", "--", "true"), 3, "has no pod 'worker-7'"),
        (("--rank", "1", "--pod", "worker-1", "--", "true"), 2, "both say where"),
        (("--pod", "worker-0", "--", "no-such-program"), 3, "Program 'no-such-program' was not found"),
        ((), 2, "No command is given"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(shell: Typed, words: tuple[str, ...], code: int, sentence: str) -> None:
    done = shell("exec", "digits", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr


def test_without_a_command_there_is_a_shell_on_the_terminal(shell: Typed) -> None:
    command = shell.command("exec", "digits", "--rank", "2")
    code, report = typed_into(command, b"echo from-$((40 + RANK)); tty; exit 5\n", shell.environ)
    assert code == 5
    assert b"from-42" in report
    assert b"/dev/pts/" in report


def test_port_forward_says_the_address_of_a_rank(shell: Typed) -> None:
    done = shell("port-forward", "digits", "--rank", "2")
    address = done.stdout.strip()
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        assert b'ddp_rank_up{ddp_job="digits",rank="2"} 1' in answer.read()
    document = json.loads(shell("port-forward", "digits", "8:metrics", "--pod", "worker-1", "-o", "json").stdout)
    assert (document["kind"], document["pod"], document["addresses"]) == ("Addresses", "digits-worker-1", [address])
    assert "It has rendezvous." in shell.refused("port-forward", "digits", "--pod", "store", "metrics")


def test_events_tell_what_happened_and_logs_fold_what_all_say(shell: Typed) -> None:
    result = shell("events", "digits")
    assert result.stdout.splitlines()[0].split()[:2] == ["LAST", "SEEN"]
    items = json.loads(shell("events", "digits", "-o", "json").stdout)["items"]
    assert {"SuccessfulCreatePod", "PyTorchJobRunning"} <= {one["reason"] for one in items}
    assert shell("events", "digits", "--warnings").stdout == ""
    wait_until(lambda: bool(shell("logs", "digits", "--rank", "3").stdout), "rank 3 has printed nothing")
    folded = shell("logs", "digits", "--rank", "0-3", "--dedup").stdout
    assert sum(" ready" in line for line in folded.splitlines()) < 4
    lines = [json.loads(line) for line in shell("logs", "digits", "--rank", "3", "-o", "json").stdout.splitlines()]
    assert {(one["kind"], one["text"], *one["ranks"]) for one in lines} == {("LogLine", "ready", 3)}
    assert shell("logs", "digits", "--rank", "all", "--since", "0s").stdout == ""


def test_restart_and_scale_say_the_effect_and_are_confirmed(shell: Typed) -> None:
    place = shell.place
    begin(shell, "small")
    uids = {pod["metadata"]["uid"] for pod in place.job("small").pods}
    result = shell("restart", "small")
    assert (result.returncode, result.stdout) == (0, "job small restarted on this machine\n")
    assert "All pods of job small (2 nodes) end and start again, from its last checkpoint." in result.stderr
    assert shell("wait", "small", "--for=world-size=4", "--timeout", "100s").returncode == 0
    workers = {pod["metadata"]["uid"] for pod in place.job("small").pods if "worker" in pod["metadata"]["name"]}
    assert len(workers) == 2
    assert not workers & uids

    planned = shell("scale", "small", "--nnodes", "1", "--dry-run")
    assert planned.stdout == "job small scaled to 1 node (dry run) on this machine\n"
    assert "2 → 1 nodes, 4 → 2 ranks" in planned.stderr
    assert place.job("small").job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    scaled = json.loads(shell("scale", "small", "--nnodes", "1", "--timeout", "100s", "-o", "json").stdout)
    assert (scaled["nodes"], scaled["nodesBefore"], scaled["ranks"]) == (1, 2, 2)
    assert scaled["confirmedAfterSeconds"] > 0
