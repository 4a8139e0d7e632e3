"""Parts of the command line that other packages register."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kubectl_ddp.cli.registry import ADDED_COMMANDS, COMMANDS
from kubectl_ddp.cli.run import run

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]


def test_every_command_of_another_package_is_registered() -> None:
    added = {name: entry.attribute for name, entry in COMMANDS.items() if entry.module is None}
    registered = PROJECT["entry-points"][ADDED_COMMANDS]
    assert set(registered) == set(added.values())
    assert {EntryPoint(name, registered[name], "").load().name for name in registered} == set(added)


def test_the_report_of_the_python_client_is_registered() -> None:
    registered = PROJECT["entry-points"]["kubectl_ddp.reports"]
    assert [EntryPoint(name, registered[name], "").load().__name__ for name in registered] == ["write_report"]


def test_a_command_that_no_installed_package_registers_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert run(["report", "digits"]) == 1
    assert "No installed package registers 'report'" in capsys.readouterr().err
    assert run(["--help"]) == 0
