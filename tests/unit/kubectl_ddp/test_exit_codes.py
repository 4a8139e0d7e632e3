"""docs/exit-codes.md has a row for every exit code, and the plugin has words for those that the launcher chooses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from ddp_trainer.common.constants import Exit
from kubectl_ddp.errors import DdpError
from kubectl_ddp.status.termination_message import describe_exit_code

PAGE: Final = (Path(__file__).parents[3] / "docs/exit-codes.md").read_text(encoding="utf-8")
OF_PODS, OF_COMMANDS = PAGE.split("## Of `kubectl ddp`")
RANGES: Final = {Exit.FAILURE: "1–127", Exit.SIGNAL_BASE: "128 + n"}  # noqa: RUF001 - as the page writes it
"""Codes that stand for many, as the page writes them."""
OWN: Final = [code for code in Exit if code not in {Exit.SUCCESS, Exit.FAILURE, Exit.USAGE, Exit.SIGNAL_BASE}]


def codes(table: str) -> set[str]:
    """First cells of the rows of a table."""
    return set(re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE))


def errors(base: type[DdpError]) -> set[int]:
    """Exit codes of an error class and its subclasses."""
    return {base.exit_code}.union(*map(errors, base.__subclasses__()))


@pytest.mark.parametrize("code", Exit, ids=lambda code: code.name)
def test_every_exit_code_of_a_pod_has_a_row(code: Exit) -> None:
    assert RANGES.get(code, str(code.value)) in codes(OF_PODS)


@pytest.mark.parametrize("code", sorted(errors(DdpError)))
def test_every_exit_code_of_a_command_has_a_row(code: int) -> None:
    assert str(code) in codes(OF_COMMANDS)


@pytest.mark.parametrize("code", OWN, ids=lambda code: code.name)
def test_an_exit_code_of_the_launcher_has_words(code: Exit) -> None:
    assert describe_exit_code(code) != f"exited with code {code}"
