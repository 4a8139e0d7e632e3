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
from tests.support.command_line import CommandLine
from tests.support.programs import captured

EXECUTABLE = Path(sys.executable).with_name("kubectl-ddp")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["verison"], "error: There is no command 'verison'. Did you mean 'version'?"),
    (["version", "--ouput", "json"], "kubectl-ddp version has no flag '--ouput'. Did you mean '--output'?"),
    (["version", "-o", "xml"], "error: Invalid value for '-o' / '--output': 'xml' is not"),
])  # fmt: skip
def test_wrong_usage_is_one_sentence_and_exit_code_2(cli: CommandLine, arguments: list[str], sentence: str) -> None:
    assert sentence in cli.refused(*arguments)


@pytest.mark.parametrize("json_flag", [["-o", "json"], ["-ojson"], ["--output=json"], ["--output", "json"]])
def test_with_json_output_an_error_is_a_json_object(cli: CommandLine, json_flag: list[str]) -> None:
    assert json.loads(cli("verison", *json_flag, code=2).err) == {
        "code": 2,
        "reason": "UsageError",
        "message": "There is no command 'verison'.",
        "hint": "Did you mean 'version'?",
    }


def test_json_asked_of_the_users_program_is_not_asked_of_us(cli: CommandLine) -> None:
    assert cli("verison", "--", "-o", "json", code=2).err.startswith("error: ")


def registered(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let ``version`` raise an error, as any command may."""

    def fail() -> None:
        raise error

    command = click.Command("version", callback=fail)
    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)


def test_ctrl_c_is_130_and_one_word(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    registered(monkeypatch, KeyboardInterrupt())
    assert cli("version", code=130).err == "error: Interrupted.\n"


def test_a_bug_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    registered(monkeypatch, ZeroDivisionError("division by zero"))
    errors = cli("version", code=1).err
    assert errors.startswith("error: Something went wrong inside kubectl-ddp: ZeroDivisionError: division by zero.")
    assert errors.count("\n") == 1


def test_the_traceback_is_there_for_who_asks_but_not_that_of_a_mistyped_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "Traceback" in cli("status", "absent", "--local", "-v", code=3).err
    assert "Traceback" not in cli("version", "--nonsense", "-v", code=2).err


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_runs_us_under_its_own_name_and_passes_our_exit_code_on() -> None:
    environ = {**os.environ, "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}"}
    called = ["bash", "-c", "kubectl ddp version --help; kubectl ddp verison"]
    done = captured(called, env=environ)
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
