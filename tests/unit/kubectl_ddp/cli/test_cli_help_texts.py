"""Output of ``--help`` and ``--help-all``: plain lines that fit a terminal, groups of flags, and valid examples."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import click
import pytest

from kubectl_ddp.cli.group import root
from kubectl_ddp.cli.internal.command import EXAMPLES
from kubectl_ddp.cli.registry import COMMANDS
from kubectl_ddp.cli.run import run
from tests.support.command_line import CommandLine

WIDTH: Final = 80
COLUMN: Final = re.compile(r"^  +\S.*?  +")
"""An entry of a list, such as a flag, in front of its explanation."""
RANGE: Final = re.compile(r"  \[[^\]]*\]$")
"""Range of a number, which click puts behind the explanation."""
RUN_ANYWHERE: Final = {"init", "render", "explain", "completion", "presets"}
"""Commands whose examples run without a cluster and a job."""


def flaws(text: str) -> list[str]:
    """Lines that are too long, that hold a backslash, or two spaces within a sentence."""
    found = []
    for line in text.splitlines():
        sentence = RANGE.sub("", COLUMN.sub("", line)).strip()
        if len(line) > WIDTH or "\\" in line or "\b" in line or "  " in sentence:
            found.append(line)
    return found


@pytest.mark.parametrize("command", [None, *COMMANDS])
@pytest.mark.parametrize("columns", ["80", "300"])
def test_help_is_lines_of_plain_text(
    command: str | None, columns: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for flag in ("--help", "--help-all")[: 2 if command else 1]:
        assert flaws(cli(*([command] if command else []), flag).out) == []


def test_the_default_help_of_submit_is_short_and_the_full_one_complete(cli: CommandLine) -> None:
    short = re.findall(r"^  (-.*?)(?:  |$)", cli("submit", "--help").out, re.MULTILINE)
    full = cli("submit", "--help-all").out
    assert len(short) <= 25
    assert all(flag in full for flag in short)
    command = root().get_command(click.Context(root()), "submit")
    assert command is not None
    names = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    assert names - set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", full)) == set()


CASES: Final = [
    pytest.param(name, words, id=f"{name} {words}".strip()) for name in EXAMPLES for words in EXAMPLES[name]
]


@pytest.mark.parametrize(("name", "words"), CASES)
def test_an_example_parses_and_runs_where_that_needs_no_cluster(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = root().get_command(click.Context(root()), name)
    assert command is not None
    command.make_context(name, words.split())
    assert f" {name} {words}".rstrip() in command.get_help(click.Context(command, info_name=f"kubectl ddp {name}"))
    if name in RUN_ANYWHERE or ("--dry-run" in words and name == "submit"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", os.devnull)
        Path("train.py").write_text("print()\n")
        Path("job.ddp.yaml").write_text(
            "{apiVersion: ddp.dev/v1, kind: Job, module: ddp_trainer, args: [train, --task, text]}\n"
        )
        Path("pods.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: []}}\n")
        assert run([name, *words.split()]) == 0, capsys.readouterr().err
