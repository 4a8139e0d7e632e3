"""Confirmation by ``delete`` and ``submit --replace``, and the jobs that they list as lost."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.cli.run import run
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import render
from tests.support import kube_objects
from tests.support.api_server import JOBS, ApiServer
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job
from tests.support.terminals import Typing

CLAIM: Final = {"checkpoint_claim": "checkpoints"}
STORE: Final = {"args": ("--checkpoint-dir", "s3://bucket/run")}


def put(cluster: ApiServer, name: str, condition: str, **keys: Any) -> str:
    root = job_kinds.root_of(render(a_job(name=name, **keys), "run1"))
    root["metadata"]["creationTimestamp"] = kube_objects.CREATED
    root["status"] = {"conditions": [kube_objects.condition(condition)]}
    cluster.put(f"{JOBS}/{name}", root)
    if condition == "Running":
        labels = {Label.JOB: name, Label.ROLE: "worker", Label.RUN_ID: "run1"}
        pod = kube_objects.pod() | {"metadata": {"labels": labels}}
        cluster.put(f"/api/v1/namespaces/team/pods/{name}-worker-0", pod)
    return f"{JOBS}/{name}"


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.mark.parametrize(
    ("condition", "keys", "needs_yes"),
    [("Running", {}, True), ("Running", CLAIM, False), ("Running", STORE, False), ("Succeeded", {}, False)],
)
def test_without_a_terminal_a_running_job_with_checkpoints_of_its_own_needs_yes(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str], condition: str, keys: dict[str, Any], *, needs_yes: bool
) -> None:
    path = put(cluster, "digits", condition, **keys)
    assert run(["delete", "digits"]) == (2 if needs_yes else 0)
    assert (path in cluster.objects) == needs_yes
    if needs_yes:
        errors = capsys.readouterr().err
        assert "checkpoints are deleted with them: job digits in namespace 'team'" in errors
        assert "--yes" in errors
        assert run(["delete", "digits", "--yes"]) == 0
        assert path not in cluster.objects


def test_all_needs_yes_without_a_terminal_and_lists_the_jobs_that_lose_progress(
    cluster: ApiServer, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {put(cluster, "ended", "Succeeded"), put(cluster, "kept", "Running", **CLAIM)}
    assert "deletes 2 jobs. " in cli("delete", "--all", code=2).err.replace("\n", " ")
    paths.add(put(cluster, "lost", "Running"))
    errors = cli("delete", "--all", code=2).err
    assert "job lost " in errors
    assert "job kept " not in errors
    assert paths <= cluster.objects.keys()
    monkeypatch.setattr("sys.stdin", Typing("n\n"))
    assert run(["delete", "--all"]) != 0
    assert "job lost " in capsys.readouterr().err
    assert paths <= cluster.objects.keys()
    monkeypatch.setattr("sys.stdin", Typing("y\n"))
    assert run(["delete", "--all"]) == 0
    assert not paths & cluster.objects.keys()


def test_replace_asks_before_it_deletes_a_job_that_has_not_ended(
    cluster: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").touch()
    submit = ["submit", str(tmp_path / "train.py"), "--name", "digits", "--replace"]
    path = put(cluster, "digits", "Running")
    assert "which has not ended: Running. Add --yes" in " ".join(cli(*submit, code=2).err.split())
    monkeypatch.setattr("sys.stdin", Typing("n\n"))
    assert run(submit) not in {0, 2}
    assert "Delete job digits in namespace 'team' of context 'test' (Running)" in capsys.readouterr().err
    assert path in cluster.objects
