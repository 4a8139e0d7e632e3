"""The edge of the command line: one sentence, one exit code, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kubectl_ddp.cli.group import LazyGroup
from kubectl_ddp.cli.run import run

EXECUTABLE = Path(sys.executable).with_name("kubectl-ddp")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["verison"], "error: There is no command 'verison'. Did you mean 'version'?"),
    (["version", "--ouput", "json"], "kubectl-ddp version has no flag '--ouput'. Did you mean '--output'?"),
    (["version", "-o", "xml"], "error: Invalid value for '-o' / '--output': 'xml' is not"),
])  # fmt: skip
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert output.err.count("\n") == 1


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


def test_ctrl_c_is_130_and_one_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    registered(monkeypatch, KeyboardInterrupt())
    assert run(["version"]) == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


def test_a_bug_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    registered(monkeypatch, ZeroDivisionError("division by zero"))
    assert run(["version"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: Something went wrong inside kubectl-ddp: ZeroDivisionError: division by zero.")
    assert errors.count("\n") == 1


def test_the_traceback_is_there_for_who_asks_but_not_that_of_a_mistyped_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(["status", "absent", "--local", "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err
    assert run(["version", "--nonsense", "-v"]) == 2
    assert "Traceback" not in capsys.readouterr().err


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
