"""Output of ``scale``: the new sizes, and ranks for which a layout has no place."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from ddp_trainer.common.parallel_dims import LayoutRange
from kubectl_ddp.cli.jobs import restart as command
from kubectl_ddp.cli.jobs.restart import left_over
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import render
from kubectl_ddp.values.program import Launcher
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job
from tests.support.kube_objects import CREATED, condition, pod, snapshot
from tests.support.scripted_backend import ScriptedBackend


class Place(ScriptedBackend):
    """A place that takes every size, and whose pods serve no metrics."""

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        pass

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        raise AssertionError("no pod serves metrics")


def submitted(**changes: Any) -> Any:
    return job_kinds.root_of(render(a_job(nnodes=NodeRange(2, 4), nproc=1, **changes), "run1"))


def run_here(monkeypatch: pytest.MonkeyPatch, *pods: Object, **changes: Any) -> None:
    """Let ``scale`` find a job that runs with these pods."""
    root = submitted(**changes) | {"status": {"conditions": [condition("Running")]}}
    root["metadata"]["creationTimestamp"] = CREATED
    place = Place([snapshot(root, *pods)])
    monkeypatch.setattr(command, "target", lambda *_, **__: (place, "digits"))


def test_ranks_that_make_no_whole_replica_are_told() -> None:
    job = submitted(parallel=LayoutRange.parse("replicate=1:2,shard=2"))
    assert [left_over(job, ranks) for ranks in (2, 3, 4)] == [
        "",
        " Its layout 'replicate=1:2,shard=2' has no place for 1 of 3 ranks.",
        "",
    ]


@pytest.mark.parametrize(
    ("nodes", "action", "report"), [(4, "unchanged", "unchanged at 4 nodes"), (2, "scaled", "scaled to 2 nodes")]
)
def test_a_size_that_a_job_has_already_is_not_reported_as_a_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nodes: int, action: str, report: str
) -> None:
    run_here(monkeypatch)
    command.scale(["digits", "--nnodes", str(nodes), "--no-wait"], standalone_mode=False)
    assert capsys.readouterr().out == f"job digits {report} in namespace 'team' of context 'scripted'\n"
    command.scale(["digits", "--nnodes", str(nodes), "--no-wait", "-o", "json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["action"] == action


def test_no_ranks_of_torchrun_are_awaited(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(monkeypatch, pod(0), pod(1), launcher=Launcher.TORCHRUN)
    command.scale(["digits", "--nnodes", "2"], standalone_mode=False)
    assert "4 → 2 nodes, 4 → 2 ranks; torchrun restarts all worker processes." in capsys.readouterr().err
    with pytest.raises(UsageError, match="because its launcher is torchrun"):
        command.scale(["digits", "--nnodes", "2", "--wait"], standalone_mode=False)
