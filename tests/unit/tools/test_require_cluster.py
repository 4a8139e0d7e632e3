"""CI that starts a cluster fails if the tests on a cluster cannot run there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import captured

ROOT: Final = Path(__file__).parents[3]
TEST: Final = "tests/cluster/test_cluster_preflight.py"
VARIABLE: Final = "DDP_TEST_REQUIRE_CLUSTER"


@pytest.mark.parametrize(("environ", "code", "outcome"), [({}, 0, "skipped"), ({VARIABLE: "1"}, 1, "1 error")])
def test_without_a_cluster_its_tests_are_skipped_and_fail_if_one_is_required(
    environ: dict[str, str], code: int, outcome: str
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DDP_TEST_")}
    env = {**clean, "KUBECONFIG": "/nonexistent", **environ}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--maxfail", "1", TEST]
    done = captured(command, cwd=ROOT, env=env)
    assert done.returncode == code, done.stdout
    assert outcome in done.stdout
    assert ("is set, and this test was skipped: These tests need a cluster" in done.stdout) == bool(environ)
