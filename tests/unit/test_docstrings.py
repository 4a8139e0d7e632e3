"""Examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "trainer/ddp_trainer",
    "ddp_collectives",
    "ddp_preflight",
    "ddp_report",
    "ddp_workloads",
    "kubectl_plugin/kubectl_ddp",
    "bench",
    "tools",
)
SOURCES: Final = {
    ".".join(path.relative_to((ROOT / package).parent).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
"""Name of a module → its file."""


@pytest.mark.parametrize("name", [name for name, path in SOURCES.items() if ">>>" in path.read_text()])
def test_the_examples_of_a_module_hold(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert (outcome.failed, outcome.attempted > 0) == (0, True)
