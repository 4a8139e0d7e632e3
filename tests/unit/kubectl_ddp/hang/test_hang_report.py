"""The output of ``hang`` for a job, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.common.hanging import RankState, RankStatus, find_culprits
from kubectl_ddp.hang.analysis import HangAnalysis, HangReport, HangState
from kubectl_ddp.hang.collector import HangSnapshot, PodReport, RankReport
from kubectl_ddp.hang.printer import hang_report_to_dict, text
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.termination_message import FirstError
from kubectl_ddp.util.text_table import Style
from tests.support.kube_objects import job

PLAIN = Style(color=False)
WAITING = RankStatus(
    rank=0, local_rank=0, node="w-0", state=RankState.ALIVE, seconds=60.0, limit=600.0, sequence=7, waits_in="barrier[]"
)
BEHIND = replace(
    WAITING, rank=1, sequence=6, waits_in="", place="train.py:3 in load", stack="Thread MainThread\n  load"
)
ERROR = FirstError(
    pod="digits-worker-0", message="Rank 1 holds the GIL.", rank=1, reason=FailureReason.HANG, stack="in strike"
)


def state(kind: State = State.RUNNING, error: FirstError | None = None) -> JobState:
    return replace(job_state(Snapshot(job=job(), pods=()), {}, where="local"), state=kind, first_error=error)


def hang_snapshot(*statuses: RankStatus, on_hang: str = "warn", ras: str = "") -> HangSnapshot:
    ranks = tuple(RankReport(status=one, pod="w-0", pid=9, usual=0.1, stack_from="python") for one in statuses)
    return HangSnapshot(pods=(PodReport(pod="w-0", generation=1, on_hang=on_hang, ranks=ranks, named=(), ras=ras),))


def report(analysis: HangAnalysis, seen: HangSnapshot, of: JobState | None = None) -> HangReport:
    return HangReport(state=of or state(), hang_snapshot=seen, analysis=analysis, now=100.0)


def test_who_is_waited_for_is_told_with_its_stack_and_the_place_of_all() -> None:
    named = tuple(find_culprits([WAITING, BEHIND], lambda _: True))
    seen = hang_snapshot(WAITING, BEHIND, ras="MISMATCH")
    hanging = report(HangAnalysis(answer=HangState.HANGS, culprits=named), seen)
    printed = text(hanging, PLAIN)
    assert "It hangs: rank 1 on w-0 did not enter collective #7; at train.py:3 in load for 60.0 s" in printed
    assert "Rank 1 (pod w-0, process 9), by python:\n  Thread MainThread\n    load" in printed
    assert "Report of NCCL (RAS):\n  MISMATCH" in printed
    as_data = json.loads(json.dumps(hang_report_to_dict(hanging)))
    assert (as_data["apiVersion"], as_data["kind"], as_data["exitCode"]) == ("cli.ddp/v1", "HangReport", 14)
    assert [culprit["rank"] for culprit in as_data["culprits"]] == [1]
    found = [(rank["rank"], rank["sequence"], rank["waitsIn"]) for rank in as_data["ranks"]]
    assert found == [(0, 7, "barrier[]"), (1, 6, "")]


def test_a_hang_that_has_ended_the_run_is_told_from_what_its_launcher_left() -> None:
    over = report(HangAnalysis(answer=HangState.UNSEEN), HangSnapshot(), state(State.FAILED, ERROR))
    assert over.code == 14
    assert over.message == "It hung, and has ended by that: Rank 1 holds the GIL."
    assert "Rank 1 (pod digits-worker-0), before it was ended:\n  in strike" in text(over, PLAIN)
    assert hang_report_to_dict(over)["endedBy"]["stack"] == "in strike"


OFF = "Hang detection is off"


@pytest.mark.parametrize(
    ("answer", "seen", "of", "sentence"),
    [
        (HangState.MOVES, hang_snapshot(WAITING), state(), "It does not hang: its one rank moves."),
        (HangState.UNSEEN, HangSnapshot(), state(State.SUCCEEDED), "It is over, and did not hang."),
        (HangState.UNSEEN, hang_snapshot(on_hang="off"), state(), f"{OFF}: the job runs with --on-hang off."),
        (HangState.UNSEEN, hang_snapshot(), state(), "No rank runs just now: its workers start, stop, or have ended."),
        (HangState.UNSEEN, HangSnapshot(silent={"w-0": "No."}), state(), "None of its pods shows its ranks: No."),
        (HangState.UNSEEN, HangSnapshot(), state(State.SUSPENDED), "No pod of it runs just now; it is Suspended."),
    ],
)
def test_where_nothing_hangs_a_sentence_says_why_and_the_exit_code_is_0(
    answer: HangState, seen: HangSnapshot, of: JobState, sentence: str
) -> None:
    calm = report(HangAnalysis(answer=answer), seen, of)
    assert (calm.message, calm.code) == (sentence, 0)
