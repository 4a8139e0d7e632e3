"""The commands on local jobs, as a person types them: what is on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.local_place import Place, Typed, all_run, condition, workers
from tests.support.programs import captured

POLITE = "trap 'echo [rank0] bye; exit 143' TERM; echo [rank0] ready; echo [rank1] also; while :; do sleep 0.05; done"


def test_list_shows_every_job_in_one_row(place: Place, typed: Typed) -> None:
    place.run(POLITE, name="digits")
    place.until(all_run(2))
    result = typed("list")
    assert (result.returncode, result.stderr) == (0, "")
    header, row = result.stdout.splitlines()
    assert header.split()[:3] == ["NAME", "STATUS", "READY"]
    assert row.split()[:4] == ["digits", "Running", "2/2", "(1-4)"]
    assert typed("list", "-o", "name").stdout == "pytorchjob.kubeflow.org/digits\n"
    (item,) = json.loads(typed("list", "-o", "json").stdout)["items"]
    assert (item["name"], item["state"], item["where"], item["nodes"]["ready"]) == ("digits", "Running", "local", 2)


def test_a_machine_without_jobs_says_how_to_make_one(typed: Typed) -> None:
    result = typed("list")
    assert (result.returncode, result.stdout) == (0, "")
    assert "submit SCRIPT --local" in result.stderr
    assert typed("status").returncode == 3


def test_the_newest_job_is_meant_when_none_is_named_and_that_is_said(place: Place, typed: Typed) -> None:
    place.run("exit 0", replicas=1)
    place.ended()
    result = typed("status")
    assert result.stderr == "Job digits (local), the newest.\n"
    assert "Status:     Succeeded" in result.stdout
    assert typed("status", "-q").stderr == ""
    assert typed("status", "pytorchjob/digits").returncode == 0
    assert typed("status", "deployment/digits").returncode == 2


def test_status_and_top_tell_what_failed(place: Place, typed: Typed) -> None:
    error = json.dumps({"rank": 3, "message": "ValueError: no", "stack": "Trace\nValueError: no"})
    place.run(f"printf %s '{error}' > \"$DDP_TERMINATION_LOG\"; exit 1", replicas=1)
    place.ended()
    assert "First error: rank 3 on digits-worker-0: ValueError: no" in typed("status", "digits").stdout
    assert typed("logs", "digits", "--first-error").stdout == "[rank3] on digits-worker-0:\nTrace\nValueError: no\n"
    assert typed("top", "digits", "--once").stdout.startswith("digits  Failed")
    assert typed.refused("wait", "digits", code=10).startswith(
        "error: Job 'digits' failed: rank 3 on digits-worker-0: ValueError: no."
    )


def test_logs_chooses_ranks(place: Place, typed: Typed) -> None:
    place.run("echo [rank0] a; echo [rank1] b; echo [rank1] ERROR c; echo plain", replicas=1)
    place.ended()
    assert typed("logs", "digits").stdout == "[rank0] a\n[rank1] ERROR c\nplain\n"
    assert typed("logs", "digits", "--rank", "1").stdout == "[rank1] b\n[rank1] ERROR c\n"
    assert typed("logs", "digits", "--rank", "all", "--tail", "1").stdout == "plain\n"
    assert typed("logs", "digits", "--rank", "x").returncode == 2
    assert typed("logs", "digits", "--rank", "failed").returncode == 3
    stamped = typed("logs", "digits", "--timestamps", "--rank", "0").stdout
    assert stamped[10] == "T"
    assert stamped.endswith("Z [rank0] a\n")


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 5", 10), ("exit 93", 11)])
def test_wait_exits_with_how_the_job_ended(place: Place, typed: Typed, script: str, code: int) -> None:
    place.run(script, replicas=1)
    result = typed("wait", "digits", "--timeout", "90s")
    assert (result.returncode, result.stdout) == (code, "")


def test_a_wait_has_a_limit(place: Place, typed: Typed) -> None:
    place.run(POLITE, replicas=1)
    assert "was not step=5 within 1 s" in typed.refused("wait", "digits", "--for=step=5", "--timeout", "1s", code=124)
    assert typed("wait", "digits", "--for=nothing").returncode == 2
    assert typed("wait", "digits", "--timeout", "soon").returncode == 2
    assert typed("wait", "no-such-job").returncode == 3


def test_suspend_resume_scale_and_delete_say_what_they_did(place: Place, typed: Typed) -> None:
    place.run(POLITE)
    place.until(all_run(2))
    assert typed("suspend", "digits", "--wait").stdout == "job digits suspended on this machine\n"
    assert place.job("digits").pods == () or not workers(place.job("digits"))
    assert typed("wait", "digits").returncode == 12
    assert typed("resume", "digits").stdout == "job digits resumed on this machine\n"
    place.until(all_run(2))
    assert typed("scale", "digits", "--nnodes", "1").stdout == "job digits scaled to 1 node on this machine\n"
    place.until(all_run(1))
    for more in ((), ("--dry-run",)):
        refused = typed("scale", "digits", "--nnodes", "9", *more)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith("error: Job 'digits' cannot have 9 nodes: it was submitted for between 1")
    assert typed("delete", "digits", "no-such-job", "--yes").stdout == "job digits deleted on this machine\n"
    assert typed("wait", "digits", "--for=deleted").returncode == 0


def test_suspend_warns_of_checkpoints_that_go_with_the_pods(place: Place, typed: Typed) -> None:
    for name, scope in (("kept", "job"), ("lost", "pod")):
        place.run(POLITE, name=name, container={"env": [{"name": "DDP_CHECKPOINT_SCOPE", "value": scope}]})
    assert "checkpoint" not in typed("suspend", "kept").stderr
    assert "warning: Job lost has no checkpoint claim" in typed("suspend", "lost").stderr


def test_a_job_without_an_engine_cannot_be_changed_and_can_be_resumed(place: Place, typed: Typed) -> None:
    place.run(POLITE)
    place.kill_engine()
    refused = typed.refused("scale", "digits", "--nnodes", "1")
    assert "The local engine of job" in refused
    assert "'kubectl-ddp resume digits' starts it again." in refused
    assert typed("resume", "digits").returncode == 0
    place.until(all_run(2))


def test_a_job_that_cannot_be_read_is_said_and_hides_no_other(place: Place, typed: Typed) -> None:
    place.run("exit 0", name="ours", replicas=1)
    (place.files("theirs").objects_file).mkdir(parents=True)  # no file: what reading it says is not up to us
    assert [line.split()[0] for line in typed("list").stdout.splitlines()] == ["NAME", "ours"]
    assert "theirs/objects.json' cannot be read: Is a directory." in typed.refused("status", "theirs", code=5)


def test_delete_wants_names_or_all(place: Place, typed: Typed) -> None:
    for name in ("one", "two"):
        place.run("exit 0", name=name, replicas=1)
    assert typed("delete").returncode == 2
    assert typed("delete", "one", "--all").returncode == 2
    assert sorted(typed("delete", "--all", "--yes").stdout.splitlines()) == [
        "job one deleted on this machine", "job two deleted on this machine",
    ]  # fmt: skip
    assert typed("delete", "--all").returncode == 0


@pytest.mark.parametrize("words", [("logs", "-f"), ("wait",)])
def test_ctrl_c_leaves_the_job_alone_and_says_so(place: Place, typed: Typed, words: tuple[str, ...]) -> None:
    place.run(POLITE, replicas=1)
    pod = workers(place.until(all_run(1)))[0]
    assert next(place.logs(pod, follow=True)) == "[rank0] ready"
    command = typed.open(words[0], "digits", *words[1:], *(("--for=step=9",) if words == ("wait",) else ()))
    if words[0] == "logs":
        assert command.stdout is not None
        assert command.stdout.readline() == "[rank0] ready\n"
    else:
        _until_it_has_children_or_threads(command.pid)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 130
    assert "job digits continues" in errors
    assert not condition("Failed")(place.job("digits"))
    assert workers(place.job("digits"))[0]["metadata"]["uid"] == pod["metadata"]["uid"]


def _until_it_has_children_or_threads(pid: int) -> None:
    """It waits: the thread that watches the job is there."""
    while len([*Path(f"/proc/{pid}/task").iterdir()]) < 2:
        pass


def test_a_reader_that_goes_away_is_no_error(place: Place, typed: Typed) -> None:
    place.run("seq -f '[rank0] %g' 100000", replicas=1)
    place.ended()
    pipeline = f"{' '.join(typed.command('logs', 'digits'))} | head -1"
    result = captured(["sh", "-c", pipeline], env=typed.environ)
    assert (result.stdout, result.stderr) == ("[rank0] 1\n", "")


def test_the_terminals_end_does_not_end_the_job(place: Place) -> None:
    place.run(POLITE, replicas=1)
    uid = workers(place.until(all_run(1)))[0]["metadata"]["uid"]
    for engine in [json.loads(place.files().engine_file.read_bytes())["pid"]]:
        assert os.getsid(engine) == engine
        os.kill(engine, signal.SIGHUP)
    place.scale("digits", 2)
    assert workers(place.until(all_run(2)))[0]["metadata"]["uid"] == uid


@pytest.mark.parametrize("words", [("list",), ("status", "digits"), ("logs", "digits"), ("top", "digits", "--once")])
def test_looking_at_local_jobs_imports_nothing_heavy(place: Place, typed: Typed, words: tuple[str, ...]) -> None:
    place.run("exit 0", replicas=1)
    place.ended()
    check = (
        "import sys; from kubectl_ddp.cli.run import run; code = run(sys.argv[1:]);"
        "heavy = {'kubernetes', 'jinja2', 'yaml', 'prometheus_client', 'torch', 'asyncio'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy or code else 0)"
    )
    result = captured([sys.executable, "-c", check, *words], env=typed.environ)
    assert (result.returncode, result.stderr) == (0, "")
