"""The verdict on a hang and its culprit, from the rank states that the pods report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.launch.hang.rank_snapshot import StackSource, snapshot_fields
from ddp_trainer.launch.hang.status_socket import VERSION as LAUNCHERS
from kubectl_ddp.hang.analysis import HangAnalysis, HangState, analyze, have_moved, is_final, timeout_analysis
from kubectl_ddp.hang.collector import VERSION, HangSnapshot, PodReport, RankReport, read


def status(rank: int, **facts: Any) -> RankStatus:
    """A rank that waits in the seventh collective for a minute."""
    standard = {"node": "w-0", "state": RankState.ALIVE, "seconds": 60.0, "limit": 600.0, "sequence": 7}
    waits = {"waits_in": "all_reduce[[4]]", "collectives": ("barrier[]", "all_reduce[[4]]")}
    return RankStatus(**{"rank": rank, "local_rank": rank, **standard, **waits, **facts})


def shown(rank: int, *, usual: float | None = 0.5, **facts: Any) -> dict[str, Any]:
    """The same rank, as a launcher shows it."""
    return snapshot_fields(status(rank, **facts), 100 + rank, usual, StackSource.PYTHON)


def page(
    *ranks: dict[str, Any], generation: int = 1, findings: list[dict[str, Any]] | None = None, ras: str = ""
) -> str:
    metadata = {"version": VERSION, "node": "w-0", "generation": generation, "on_hang": "warn", "time": 1.0}
    return json.dumps({**metadata, "ranks": ranks, "findings": findings or [], "ras": ras})


def pod(*ranks: dict[str, Any], name: str = "w-0", generation: int = 1, **more: Any) -> PodReport:
    report = read(name, page(*ranks, generation=generation, **more))
    assert isinstance(report, PodReport), report
    return report


def verdict(*pods: PodReport, **silent: str) -> HangAnalysis:
    """Return the analysis of these pods, and of pods that do not show their ranks."""
    found = analyze(HangSnapshot(pods=pods, silent=silent))
    assert found is not None
    return found


def test_what_a_launcher_writes_is_what_the_command_reads() -> None:
    assert LAUNCHERS == VERSION
    facts = {"state": RankState.DEAF, "section": "data", "place": "a.py:1 in f", "stack": "Thread MainThread"}
    report = RankReport(status=status(1, **facts), pod="w-0", pid=101, usual=0.5, stack_from="python")
    assert pod(shown(1, **facts)).ranks == (report,)


def test_a_launcher_of_a_later_version_may_tell_more() -> None:
    document = json.loads(page(shown(0)))
    document["weather"] = "fair"
    document["ranks"][0]["mood"] = "good"
    assert isinstance(read("w-0", json.dumps(document)), PodReport)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<html>", "cannot be read"),
        pytest.param("[" * 9999, "cannot be read", id="brackets"),
        (page(shown(0)).replace(VERSION, "ddp.dev/hang/v9"), "in the form 'ddp.dev/hang/v9'"),
        (page(shown(0)).replace('"alive"', '"asleep"'), "cannot be read"),
        (page(shown(0)).replace("60.0", '"long"'), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(text: str, sentence: str) -> None:
    assert sentence in str(read("w-0", text))


def test_the_rank_that_did_not_enter_the_collective_is_named_before_the_launchers_limit() -> None:
    behind = shown(1, sequence=6, waits_in="", collectives=("barrier[]",))
    analysis = verdict(pod(shown(0), behind), pod(shown(2), name="w-1"))
    assert analysis.answer is HangState.HANGS
    (culprit,) = analysis.culprits
    assert culprit.message.startswith("rank 1 on w-0 did not enter all_reduce #7")


def test_who_holds_the_gil_is_named_with_its_collective() -> None:
    analysis = verdict(pod(shown(0), shown(1, state=RankState.DEAF, waits_in="")))
    assert "holds the GIL: no thread of Python gets a turn since it began all_reduce #7" in analysis.culprits[0].message


@pytest.mark.parametrize(("limit", "usual"), [(5.0, 0.1), (10.0, None), (15.0, 5.0), (25.0, 3600.0)])
@pytest.mark.parametrize(("more", "verdict"), [(-0.1, None), (0.0, HangState.HANGS)])
def test_a_rank_hangs_after_thrice_its_longest_stay_and_may_be_slow_before(
    limit: float, usual: float | None, more: float, verdict: HangState | None
) -> None:
    statuses = [shown(rank, seconds=limit + more, usual=usual, sequence=7 - rank) for rank in range(2)]
    assert getattr(analyze(HangSnapshot(pods=(pod(*statuses),))), "answer", None) is verdict


def test_while_one_rank_moves_nobody_hangs() -> None:
    hang_snapshot = HangSnapshot(pods=(pod(shown(0), shown(1, seconds=0.2)),))
    assert analyze(hang_snapshot) is None
    analysis = timeout_analysis(hang_snapshot)
    assert analysis.answer is HangState.STALLED
    assert analysis.still == (0,)


def test_all_in_one_collective_wait_for_none_of_these() -> None:
    analysis = verdict(pod(shown(0), shown(1)))
    assert analysis.answer is HangState.STUCK
    assert "all 2 ranks that run wait in all_reduce #7" in analysis.message


def test_a_pod_that_shows_nothing_may_be_the_one() -> None:
    analysis = verdict(pod(shown(0)), **{"w-1": "It does not answer."})
    assert analysis.answer is HangState.SILENT
    assert "pod w-1 does not show its ranks" in analysis.message


def test_ranks_move_when_each_was_seen_elsewhere_since() -> None:
    before = HangSnapshot(pods=(pod(shown(0), shown(1, seconds=3.0)),))
    assert have_moved(before, HangSnapshot(pods=(pod(shown(0, seconds=0.1), shown(1, seconds=0.9)),)), 3.5)
    assert not have_moved(before, HangSnapshot(pods=(pod(shown(0, seconds=0.1), shown(1, seconds=4.0)),)), 3.5)
    assert not have_moved(before, HangSnapshot(pods=(pod(shown(0, seconds=0.1)),)), 3.5)
    assert not have_moved(HangSnapshot(), HangSnapshot(), 3.5)


def test_a_rank_that_its_launcher_has_only_now_seen_to_move_may_have_stopped_before() -> None:
    hang_snapshot = HangSnapshot(pods=(pod(shown(0, seconds=0.0), shown(1, seconds=0.2)),))
    assert not have_moved(hang_snapshot, hang_snapshot, 1.5)


def test_a_pod_of_the_generation_before_does_not_speak_for_its_ranks() -> None:
    hang_snapshot = HangSnapshot(pods=(pod(shown(0), generation=2), pod(shown(1), name="w-1", generation=1)))
    assert [rank.status.rank for rank in hang_snapshot.ranks] == [0]
    assert verdict().answer is HangState.UNSEEN


def test_what_launchers_have_named_is_told_once_and_in_order() -> None:
    def named(moment: float, generation: int, *killed: int) -> dict[str, Any]:
        report = {"time": moment, "generation": generation, "ranks": [1], "sentences": ["rank 1 is still"]}
        return {**report, "killed": list(killed)}

    first, second = [named(4.0, 1), named(5.0, 1, 1), named(9.0, 2, 1)], [named(9.1, 2, 1)]
    hang_snapshot = HangSnapshot(pods=(pod(findings=first, ras="RAS"), pod(name="w-1", findings=second)))
    assert [(item.generation, item.killed) for item in hang_snapshot.named] == [(1, (1,)), (2, (1,))]
    assert hang_snapshot.ras == "RAS"


def test_a_pod_that_is_slow_to_answer_is_asked_again_for_a_while() -> None:
    silent = HangSnapshot(silent={"w-0": "timed out"})
    analysis = verdict(**silent.silent)
    assert (is_final(analysis, silent, 1.0), is_final(analysis, silent, 8.0)) == (False, True)
    assert is_final(analysis, HangSnapshot(), 0.0)
