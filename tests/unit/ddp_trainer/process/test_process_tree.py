"""The parent of a process, by the kernel's word."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddp_trainer.process.process_tree import parent_of


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_has_the_parent_that_started_it() -> None:
    assert parent_of(os.getpid()) == os.getppid()


def test_a_name_with_parentheses_does_not_mislead(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) R 1 (b)) S 3 7 7")
    assert parent_of(7, tmp_path) == 3


def test_a_process_that_has_ended_has_none(tmp_path: Path) -> None:
    assert parent_of(8, tmp_path) is None
