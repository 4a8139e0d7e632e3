"""``make test`` ends with the number of tests that were skipped, by reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.skipped_tests import VARIABLE, describe_skipped

ROOT: Final = Path(__file__).parents[3]
TESTS: Final = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_on_a_cluster(number):
    pytest.skip("This test needs a cluster.")

def test_here():
    assert True
"""


def test_a_run_of_pytest_notes_the_reason_of_each_skipped_test(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | {VARIABLE: str(tmp_path / "notes/skipped"), "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    reasons = (tmp_path / "notes/skipped").read_text().splitlines()
    assert describe_skipped(reasons) == "make test: 3 tests were skipped: 3 (This test needs a cluster)."


def test_rare_reasons_are_counted_together() -> None:
    text = describe_skipped([reason for count, reason in enumerate("abcdefg", start=1) for _ in range(count)])
    assert text.startswith("make test: 28 tests were skipped: 7 (g), 6 (f)")
    assert text.endswith("3 for other reasons.")
