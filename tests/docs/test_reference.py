"""The reference has every command, every option and every key of a job file."""

from __future__ import annotations

import re
import sys

import pytest

from ddp_trainer.__main__ import COMMANDS as PROGRAMS
from kubectl_ddp.cli.registry import COMMANDS
from kubectl_ddp.spec.fields import FILE_KEYS
from tests.docs.test_documents import ROOT
from tests.support.programs import captured
from tools.docs import cli

PAGE = (ROOT / "docs/cli.md").read_text()


def section(name: str) -> str:
    return PAGE.partition(f"\n### {name}\n")[2].partition("\n##")[0]


def flags_in(text: str) -> set[str]:
    listed = re.findall(r"^- `(-[^`]*)`:", text, re.MULTILINE)
    return {flag for item in listed for flag in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", item)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_the_reference(name: str) -> None:
    text = section(name)
    shown = flags_in(text) | flags_in(PAGE.partition("\n## Common options\n")[2].partition("\n## ")[0])
    if "(#job-options)" in text:
        shown |= flags_in(PAGE.partition("\n## Job options\n")[2].partition("\n## ")[0]) | cli.key_flags()
    assert {flag for option in cli.visible_options(name).values() for flag in option.opts} <= shown


@pytest.mark.parametrize("name", [*PROGRAMS, "collectives"])
def test_every_program_of_the_image_is_in_the_reference_with_its_flags(name: str) -> None:
    if name in {"launch", "train"}:
        assert re.search(rf"`{name}` .*(\(trainer-options\.md\)|`ddp-launch`)", " ".join(PAGE.split()))
        return
    command = [sys.executable, "-m", "ddp_trainer", name, "--help"]
    shown = captured(command, check=True).stdout
    listed = set(re.findall(r"^  (?:-\w, |-\w \S+, )?(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}
    assert listed <= flags_in(PAGE.rpartition(f"\n### {name}\n")[2].partition("\n##")[0])


@pytest.mark.parametrize("key", FILE_KEYS)
def test_every_key_of_a_job_file_is_in_the_reference(key: str) -> None:
    assert f"| `{key}` |" in (ROOT / "docs/job-file.md").read_text()
