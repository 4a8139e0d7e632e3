"""The edge of the command line: one sentence, one exit code, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from kubectl_ddp.cli.group import LazyGroup
from kubectl_ddp.cli.registry import ALIASES, COMMANDS, SECTIONS
from kubectl_ddp.cli.run import run
from kubectl_ddp.errors import DdpError

EXECUTABLE = Path(sys.executable).with_name("kubectl-ddp")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["verison"], 2, "error: There is no command 'verison'. Did you mean 'version'?"),
        (["zzz"], 2, "error: There is no command 'zzz'. Run 'kubectl-ddp --help' to see them all."),
        (
            ["version", "--ouput", "json"],
            2,
            "error: kubectl-ddp version has no flag '--ouput'. Did you mean '--output'?",
        ),
        (
            ["-n", "x", "list"],
            2,
            "kubectl-ddp has no flag '-n'. Flags follow the command, as in 'kubectl-ddp list -n x'.",
        ),
        (["version", "-o", "xml"], 2, "error: Invalid value for '-o' / '--output': 'xml' is not"),
        (["version", "extra"], 2, "error: Got unexpected extra argument (extra). Run 'kubectl-ddp version --help'"),
        (["version", "-o"], 2, "error: Option '-o' requires an argument."),
        (["completion"], 2, "error: Missing argument 'SHELL'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    assert run(arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("json_flag", [["-o", "json"], ["-ojson"], ["--output=json"], ["--output", "json"]])
def test_with_json_output_an_error_is_a_json_object(capsys: pytest.CaptureFixture[str], json_flag: list[str]) -> None:
    assert run(["verison", *json_flag]) == 2
    assert json.loads(capsys.readouterr().err) == {
        "code": 2,
        "reason": "UsageError",
        "message": "There is no command 'verison'.",
        "hint": "Did you mean 'version'?",
    }


def test_json_asked_of_the_users_program_is_not_asked_of_us(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verison", "--", "-o", "json"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def registered(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let ``version`` raise an error, as any command may."""

    def fail() -> None:
        raise error

    command = click.Command("version", callback=fail)
    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)


def every_error() -> list[type[DdpError]]:
    found, waiting = [], [DdpError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_of_ours_ends_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[DdpError]
) -> None:
    error = DdpError.__new__(kind)
    DdpError.__init__(error, "It broke.", hint="Mend it.")
    registered(monkeypatch, error)
    assert run(["version"]) == kind.exit_code
    assert capsys.readouterr().err == "error: It broke. Mend it.\n"


def test_ctrl_c_is_130_and_one_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    registered(monkeypatch, KeyboardInterrupt())
    assert run(["version"]) == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


def test_a_bug_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    registered(monkeypatch, ZeroDivisionError("division by zero"))
    assert run(["version"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: Something went wrong inside kubectl-ddp: ZeroDivisionError: division by zero.")
    assert told.count("\n") == 1


def test_the_traceback_is_there_for_who_asks_but_not_that_of_a_mistyped_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(["status", "absent", "--local", "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err
    assert run(["version", "--nonsense", "-v"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_a_command_there_is_help_and_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    told = capsys.readouterr()
    assert all(name in told.out for name in COMMANDS)
    assert told.err == ""


def test_every_alias_means_a_command_and_hides_none() -> None:
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)
    assert sum(len(part) for part in SECTIONS.values()) == len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_under_its_own_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: kubectl-ddp {name} ")
    assert "--namespace" in told


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([EXECUTABLE, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_usage_is_shown_as_kubectls_when_kubectl_called() -> None:
    for caller, usage in (
        ("/usr/bin/kubectl", "kubectl ddp"),
        ("/usr/bin/bash", "kubectl-ddp"),
        (str(EXECUTABLE), "kubectl-ddp"),
    ):
        done = subprocess.run(
            [EXECUTABLE, "version", "-h"], env={**os.environ, "_": caller}, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"Usage: {usage} version ")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_runs_us_under_its_own_name_and_passes_our_exit_code_on() -> None:
    environ = {**os.environ, "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}"}
    called = ["bash", "-c", "kubectl ddp version --help; kubectl ddp verison"]
    done = subprocess.run(called, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Usage: kubectl ddp version ")
    assert (done.returncode, done.stderr) == (2, "error: There is no command 'verison'. Did you mean 'version'?\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here to stand for a full disk")
def test_a_full_disk_is_no_bug() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([EXECUTABLE, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: kubectl-ddp cannot write: ")
    assert done.stderr.count("\n") == 1


def test_a_caller_without_stdout_gets_the_exit_code() -> None:
    closed = 'exec "$0" completion bash >&-'
    done = subprocess.run(["sh", "-c", closed, EXECUTABLE], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_a_command_works_leaves_no_traceback(tmp_path: Path) -> None:
    pipe = tmp_path / "job.yaml"
    os.mkfifo(pipe)
    process = subprocess.Popen([EXECUTABLE, "render", "-f", str(pipe)], stderr=subprocess.PIPE, text=True)
    writer = pipe.open("w")  # returns when the command has opened it to read
    # A signal between Python's last look for one and its read would wake nobody.
    while "pipe_read" not in Path(f"/proc/{process.pid}/wchan").read_text():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    writer.close()
    assert (process.returncode, told) == (130, "error: Interrupted.\n")
