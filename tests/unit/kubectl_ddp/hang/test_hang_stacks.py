"""Stacks that come by exec, beside outlines that come from the metrics port."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.launch.hang.rank_snapshot import StackSource, snapshot_fields, summary_fields
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.hang.analysis import HangAnalysis, HangReport, HangState, analyze
from kubectl_ddp.hang.collector import HangSnapshot, collect_hang_snapshot
from kubectl_ddp.hang.printer import hang_report_to_dict, text
from kubectl_ddp.hang.stacks import with_stacks
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.util.text_table import Style
from tests.support.kube_objects import job, pod
from tests.support.scripted_backend import ScriptedBackend
from tests.unit.kubectl_ddp.hang.test_hang_verdict import page

FORBIDDEN = 'Error from server (Forbidden): pods "w" is forbidden: User "ada" cannot create resource "pods/exec"'
REFUSED = 'error: unable to upgrade connection: pods "w" is forbidden: User "ada" cannot create resource "pods/exec" in'
"""Message over the WebSocket of kubectl 1.31 and later."""
WAITING = RankStatus(
    rank=0, local_rank=0, node="digits-worker-0", state=RankState.ALIVE, seconds=60, limit=600, sequence=7, waits_in="x"
)
STATUSES = [WAITING, replace(WAITING, rank=1, node="digits-worker-1", sequence=6, waits_in="")]


def full(rank: int) -> dict[str, Any]:
    rank_status = replace(STATUSES[rank], place="train.py:3 in load", stack="Thread MainThread\n  load")
    return snapshot_fields(rank_status, 40 + rank, 0.5, StackSource.PYTHON)


class Place(ScriptedBackend):
    """Two pods with a rank each, of which rank 1 is waited for; exec runs a script of the test instead of kubectl."""

    def __init__(self, script: str, **spec: str) -> None:
        root = job(metadata={"annotations": {Annotation.SPEC: json.dumps(spec)}})
        super().__init__([Snapshot(job=root, pods=(pod(0), pod(1)))])
        self._script = script
        self.entered: list[str] = []
        self.words: Sequence[str] = ()

    def hang(self, pod: Object) -> str:
        rank = int(pod["metadata"]["name"].rpartition("-")[2])
        finding = {"time": 1.0, "generation": 1, "ranks": [1], "killed": []}
        return page(summary_fields(STATUSES[rank], 0.5), findings=[finding])

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        self.words = entry.words
        self.entered.append(pod["metadata"]["name"])
        return ExecCommand(words=("sh", "-c", self._script))


def report(script: str, **spec: str) -> tuple[HangReport, Place]:
    place = Place(script, **spec)
    snapshot = place.job("digits")
    hang_snapshot = collect_hang_snapshot(place, snapshot)
    analysis = analyze(hang_snapshot)
    assert analysis is not None
    hang_snapshot, analysis, missing = with_stacks(place, snapshot, hang_snapshot, analysis)
    state = job_state(snapshot, {}, where="scripted")
    found = HangReport(state=state, hang_snapshot=hang_snapshot, analysis=analysis, now=100.0, stacks_missing=missing)
    return found, place


def test_who_may_exec_gets_the_stack_of_the_rank_that_is_waited_for_and_of_no_other_pod() -> None:
    found, place = report(f"printf %s {shlex.quote(page(full(1)))}")
    assert place.entered == ["digits-worker-1"]
    document = hang_report_to_dict(found)
    (culprit,) = document["culprits"]
    assert (culprit["rank"], culprit["pid"], culprit["stack"]) == (1, 41, "Thread MainThread\n  load")
    assert "train.py:3" in culprit["sentence"]
    assert [rank["pid"] for rank in document["ranks"]] == [None, 41]
    assert document["stacksMissing"] == ""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"echo {shlex.quote(FORBIDDEN)} >&2; exit 1", "right to create pods/exec"),
        (f"echo {shlex.quote(REFUSED)} >&2; exit 1", "right to create pods/exec"),
        ("echo 'hang: no launcher shows its ranks in /x' >&2; exit 1", "no launcher shows its ranks"),
        ("exit 77", "exit code 77"),
        ("echo '<html>'", "cannot be read"),
    ],
)
def test_without_exec_the_rank_is_named_and_one_line_says_why_it_has_no_stack(script: str, why: str) -> None:
    found, _ = report(script)
    document = hang_report_to_dict(found)
    assert (document["answer"], [rank["rank"] for rank in document["culprits"]]) == (HangState.HANGS, [1])
    assert why in document["stacksMissing"]
    lines = text(found, Style(color=False)).splitlines()
    assert [line for line in lines if why in line] == [document["stacksMissing"]]
    assert any("rank 1 on digits-worker-1 did not enter" in line for line in lines)


def test_a_pod_that_has_gone_on_meanwhile_does_not_change_the_answer() -> None:
    found, _ = report(f"printf %s {shlex.quote(page(full(1), generation=2))}")
    assert [rank.status.rank for rank, _ in found.culprits] == [1]
    assert found.culprits[0][0].status.stack == ""


@pytest.mark.parametrize(("has_named", "entered"), [(False, []), (True, ["digits-worker-0"])])
def test_while_all_ranks_move_a_pod_is_entered_for_its_launchers_report(has_named: bool, entered: list[str]) -> None:
    place = Place("exit 1")
    snapshot = place.job("digits")
    hang_snapshot = collect_hang_snapshot(place, snapshot)
    if not has_named:
        hang_snapshot = HangSnapshot(pods=tuple(replace(item, named=()) for item in hang_snapshot.pods))
    with_stacks(place, snapshot, hang_snapshot, HangAnalysis(answer=HangState.MOVES))
    assert place.entered == entered


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ("-P", "-m", "ddp_trainer", "hang")),
        ({"runtimeImage": "r:1"}, ("python3", "/var/run/ddp-runtime", "hang")),
        ({"runtimeImage": "r:1", "python": "/conda/python"}, ("/conda/python", "/var/run/ddp-runtime", "hang")),
    ],
)
def test_an_image_without_the_launcher_needs_no_shell(spec: dict[str, str], words: tuple[str, ...]) -> None:
    _, place = report("exit 1", **spec)
    assert place.words[-len(words) :] == words
    assert (place.words[0] == "sh") is not bool(spec)


def test_no_pod_of_a_job_of_torchrun_is_asked_for_its_ranks() -> None:
    place = Place("exit 1", launcher="torchrun")
    hang_snapshot = collect_hang_snapshot(place, place.job("digits"))
    reported = "The launcher of the job is torchrun, which reports no ranks."
    assert hang_snapshot.pods == ()
    assert hang_snapshot.silent == dict.fromkeys(("digits-worker-0", "digits-worker-1"), reported)
