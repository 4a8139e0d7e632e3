"""What every ``--help`` prints: plain lines that fit a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.registry import COMMANDS
from kubectl_ddp.cli.run import run

WIDTH: Final = 80
COLUMN: Final = re.compile(r"^  +\S.*?  +")
"""An entry of a list, such as a flag, in front of its explanation."""


def flaws(text: str) -> list[str]:
    """Lines that are too long, that hold a backslash, or two spaces within a sentence."""
    found = []
    for line in text.splitlines():
        sentence = COLUMN.sub("", line).replace("  [x>=", " [x>=").strip()  # click puts two spaces before a range
        if len(line) > WIDTH or "\\" in line or "\b" in line or "  " in sentence:
            found.append(line)
    return found


@pytest.mark.parametrize("command", [None, *COMMANDS])
@pytest.mark.parametrize("columns", ["80", "300"])
def test_help_is_lines_of_plain_text(
    command: str | None, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run([*([command] if command else []), "--help"]) == 0
    assert flaws(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", ["config", "completion"])
def test_a_list_in_a_help_text_has_a_line_for_each_entry(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    entries = {"config": ("view ", "set KEY", "unset KEY", "path "), "completion": ("bash: ", "zsh: ", "fish: ")}
    for entry in entries[command]:
        assert [line for line in lines if line.startswith(entry)], entry


DEFAULT_TWICE: Final = re.compile(r"\(default: ([^)]*)\)\s*\(default: ")


@pytest.mark.parametrize("words", [["train"], ["launch"], ["preflight"], ["collectives"], ["store"], ["checkpoint"]])
def test_a_default_is_printed_once(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddp_trainer", *words, "--help"],
        env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not DEFAULT_TWICE.search(done.stdout)


def test_the_text_for_a_package_index_has_no_relative_link() -> None:

    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    text = project["readme"]["text"]
    links = re.findall(r"\]\(([^)]*)\)|(?:href|src)=\"([^\"]*)\"", text)
    assert not [link for pair in links for link in pair if link and not link.startswith("https://")]
    assert "kubectl ddp" in text
