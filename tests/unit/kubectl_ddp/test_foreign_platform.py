"""Commands for a cluster run on macOS: nothing on their path needs Linux. Local jobs are refused there."""

from __future__ import annotations

import json
import sys
import urllib.request  # noqa: F401 - imported later it would look for a module of macOS
from pathlib import Path

import pytest

from kubectl_ddp.cli.run import run
from tests.support.api_server import ApiServer
from tests.support.programs import captured


@pytest.fixture(autouse=True)
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def test_no_module_of_cluster_commands_needs_what_only_linux_has() -> None:
    command = [sys.executable, "-m", "tests.support.foreign_platform", "modules"]
    imported = json.loads(captured(command, check=True).stdout)
    assert {"kubectl_ddp.cli.jobs.submit_run", "kubectl_ddp.backends.cluster.backend"} <= set(imported)


@pytest.mark.parametrize(
    "words", [("submit", "train.py", "--local", "--name", "mine"), ("logs", "mine", "--local"), ("list",)], ids=" ".join
)
def test_local_jobs_are_refused_with_one_sentence_and_nothing_is_created(
    workdir: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(words) == 4
    expected = "error: Local jobs need Linux, and this is darwin. Name a cluster with --kubeconfig FILE.\n"
    assert capsys.readouterr().err.endswith(expected)
    assert not (workdir / "state").exists()


def test_a_list_shows_the_cluster_alone(cluster: ApiServer) -> None:
    assert run(["list"]) == 0
    assert cluster.requests
