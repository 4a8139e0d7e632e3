"""Limits of a rank without progress, and the decision of the store."""

from __future__ import annotations

import re

import pytest

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.common.time_classes import Section
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.launch.protocol.messages import HangingRanks, RankStates, Show, SuspectHang
from ddp_trainer.launch.rendezvous import hang_limits
from ddp_trainer.launch.rendezvous.hang_decision import ASK_SECONDS, FRESH_SECONDS, HangAnalyzer
from ddp_trainer.launch.rendezvous.hang_limits import SCRIPT, HangPolicy, StepTimeHistory


def warm(floor: float | None = None, section: str = SCRIPT) -> StepTimeHistory:
    pace = StepTimeHistory(HangPolicy(floor=floor))
    for _ in range(hang_limits.WARM_UP_MOVES):
        pace.moved(section, 1.0)
    return pace


def test_the_first_steps_have_a_generous_limit_whatever_the_floor() -> None:
    pace = StepTimeHistory(HangPolicy(floor=1.0))
    assert pace.limit(SCRIPT, is_stopped=True) == 1.0, "a signal has stopped it"
    for _ in range(hang_limits.WARM_UP_MOVES - 1):
        pace.moved(SCRIPT, 0.1)
    assert pace.limit(SCRIPT) == hang_limits.FIRST_SECONDS
    pace.moved(SCRIPT, 0.1)
    assert pace.limit(SCRIPT) == 1.0


def test_the_first_steps_of_a_later_group_are_measured_by_those_of_the_workers_before() -> None:
    assert StepTimeHistory(HangPolicy(floor=1.0), first=0.5).limit(SCRIPT) == hang_limits.FIRST_FLOORS * 1.0
    assert StepTimeHistory(HangPolicy(floor=1.0), first=40.0).limit(SCRIPT) == hang_limits.FIRST_FACTOR * 40.0
    assert StepTimeHistory(HangPolicy(floor=1.0), first=5000.0).limit(SCRIPT) == hang_limits.FIRST_SECONDS
    assert StepTimeHistory(HangPolicy(floor=9000.0), first=0.5).limit(SCRIPT) == 9000.0


def test_nothing_is_learned_once_the_group_is_over() -> None:
    pace = warm(1.0)
    pace.is_closed = True
    pace.moved(SCRIPT, 40.0)
    assert pace.limit(SCRIPT) == 1.0


def test_nothing_is_learned_from_a_first_step_that_compiles() -> None:
    pace = StepTimeHistory(HangPolicy(floor=1.0))
    for seconds in (300.0, 0.1, 0.1, 0.1, 0.1, 0.1):
        pace.moved(SCRIPT, seconds)
    assert pace.limit(SCRIPT) == 1.0


def test_a_limit_follows_the_longest_recent_stay_in_its_section() -> None:
    pace = warm(1.0)
    pace.moved(SCRIPT, 40.0)
    pace.moved(Section.DATA, 2.0)
    assert pace.limit(SCRIPT) == hang_limits.FACTOR * 40.0
    assert pace.limit(Section.DATA) == hang_limits.FACTOR * 2.0
    assert pace.limit(Section.FORWARD) == 1.0


def test_what_was_long_ago_is_forgotten() -> None:
    pace = warm(1.0)
    pace.moved(SCRIPT, 40.0)
    for _ in range(hang_limits.RECENT):
        pace.moved(SCRIPT, 0.5)
    assert pace.limit(SCRIPT) == hang_limits.FACTOR * 0.5


def test_a_floor_of_the_user_raises_every_limit_and_lowers_none_of_evaluations_and_checkpoints() -> None:
    assert {warm(5000.0, section).limit(section) for section in hang_limits.FLOORS} == {5000.0}
    assert warm(1.0).limit(Section.EVALUATION) == hang_limits.FLOORS[Section.EVALUATION]
    assert warm(1.0).limit(Section.CHECKPOINT) == hang_limits.FLOORS[Section.CHECKPOINT]


def test_the_setup_of_a_rank_has_no_limit() -> None:
    assert warm().limit(Section.SETUP) is None


def test_flags_are_believed_before_the_environment() -> None:
    environ = {"DDP_ON_HANG": "act", "DDP_HANG_FLOOR": "90"}
    assert hang_limits.policy_of("", "", environ) == HangPolicy(on_hang=hang_limits.OnHang.ACT, floor=90.0)
    assert hang_limits.policy_of("off", "7.5", environ) == HangPolicy(on_hang=hang_limits.OnHang.OFF, floor=7.5)
    assert hang_limits.policy_of("", "", {}) == HangPolicy(on_hang=hang_limits.OnHang.WARN, floor=None)


@pytest.mark.parametrize(
    ("on_hang", "floor", "environ", "sentence"),
    [
        ("kill", "", {}, "--on-hang 'kill' is none of off, warn, act."),
        ("", "0", {}, "--hang-floor '0' is not a number of seconds above 0."),
        ("", "nan", {}, "--hang-floor 'nan' is not a number of seconds above 0."),
        ("", "", {"DDP_ON_HANG": "kill"}, "DDP_ON_HANG='kill' is none of off, warn, act."),
        ("", "", {"DDP_HANG_FLOOR": "soon"}, "DDP_HANG_FLOOR='soon' is not a number of seconds above 0."),
    ],
)
def test_an_invalid_policy_is_one_sentence(on_hang: str, floor: str, environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(LaunchError, match=f"^{re.escape(sentence)}$"):
        hang_limits.policy_of(on_hang, floor, environ)


def test_a_step_takes_the_longest_stays_in_all_its_sections_and_an_evaluation_is_no_part_of_it() -> None:
    pace = warm()
    assert pace.longest_step() is None
    for section, seconds in ((Section.DATA, 5.0), (Section.FORWARD, 7.0), (Section.BACKWARD, 9.0), (Section.DATA, 2.0)):
        pace.moved(section, seconds)
    assert pace.longest_step(Section.EVALUATION) is None
    pace.moved(Section.EVALUATION, 1200.0)
    pace.moved(Section.SETUP, 300.0)
    assert pace.longest_step(Section.FORWARD) == 21.0
    assert pace.longest_step(Section.EVALUATION) == 1221.0


@pytest.mark.parametrize("section", [SCRIPT, Section.DATA, Section.FORWARD])
def test_a_rank_is_reported_long_before_its_limit_also_while_it_warms_up(section: str) -> None:
    assert StepTimeHistory(HangPolicy()).report_after_seconds(section) == hang_limits.NOTICE_SECONDS
    assert warm(section=section).report_after_seconds(section) == hang_limits.NOTICE_SECONDS


def test_slow_steps_and_pauses_delay_the_report() -> None:
    steps = warm()
    for _ in range(9):
        steps.moved(SCRIPT, 4.0)
    assert steps.report_after_seconds(SCRIPT) == hang_limits.NOTICE_STAYS * 4.0
    steps.moved(SCRIPT, 100.0)
    assert steps.report_after_seconds(SCRIPT) == hang_limits.NOTICE_LONGEST * 100.0


def test_a_report_comes_no_later_than_half_of_the_limit() -> None:
    assert warm(2.0).report_after_seconds(SCRIPT) == 1.0
    for section in (Section.EVALUATION, Section.CHECKPOINT):
        assert warm().report_after_seconds(section) == hang_limits.FLOORS[section] / 2


NODES = ("a", "b")


def report(judge: HangAnalyzer, rank: int, now: float, **changes: object) -> Show | HangingRanks | None:
    base = {"local_rank": 0, "node": f"w-{rank}", "state": RankState.ALIVE, "seconds": 6.0, "limit": 10.0}
    status = RankStatus(rank=rank, **{**base, "sequence": 8 - rank, **changes})
    return judge.update(NODES[rank], RankStates(generation=3, ranks=(status,)), NODES, now)


def test_an_alarm_makes_the_store_request_the_ranks_of_all_nodes_once() -> None:
    judge = HangAnalyzer()
    assert judge.update("a", SuspectHang(generation=3), NODES, 1.0) == Show(generation=3)
    assert judge.update("b", SuspectHang(generation=3), NODES, 1.0) is None
    assert judge.update("a", SuspectHang(generation=3), NODES, 1.0 + ASK_SECONDS) == Show(generation=3)


def test_no_rank_is_named_before_all_nodes_have_reported() -> None:
    judge = HangAnalyzer()
    assert report(judge, 0, 1.0) is None
    decision = report(judge, 1, 1.1)
    assert (decision.ranks, decision.to_kill) == ((1,), ())
    assert decision.sentences[0].startswith("rank 1 on w-1 did not enter collective #8")


def test_looks_of_different_moments_are_not_compared() -> None:
    judge = HangAnalyzer()
    report(judge, 0, 1.0)
    assert report(judge, 1, 1.1 + FRESH_SECONDS) is None


def test_a_warning_comes_first_and_once_and_the_limit_is_for_killing() -> None:
    judge = HangAnalyzer()
    report(judge, 0, 1.0)
    assert isinstance(report(judge, 1, 1.0), HangingRanks)
    assert report(judge, 0, 2.0) is None
    assert report(judge, 1, 2.0) is None
    report(judge, 0, 6.0, seconds=11.0)
    assert report(judge, 1, 6.0, seconds=11.0).to_kill == (1,)


def test_ranks_that_all_wait_are_reported_once_and_none_is_killed() -> None:
    judge = HangAnalyzer()
    same = {"sequence": 8, "waits_in": "all_reduce[[4]]"}
    report(judge, 0, 1.0, **same)
    decision = report(judge, 1, 1.0, **same)
    assert (decision.ranks, decision.to_kill) == ((), ())
    assert "another has ended early" in decision.sentences[0]
    assert report(judge, 1, 2.0, **same, seconds=30.0) is None


def test_a_rank_that_hangs_again_after_progress_is_named_again() -> None:
    judge = HangAnalyzer()
    report(judge, 0, 1.0)
    assert isinstance(report(judge, 1, 1.0), HangingRanks)
    assert report(judge, 1, 2.0, seconds=0.0) is None
    assert isinstance(report(judge, 1, 3.0), HangingRanks)


IN_SCRIPT = {"limit": 600.0, "notice": 30.0, "seconds": 31.0}
"""A rank of a plain script whose limit is far away."""


def verdict(rank_0: dict[str, object], rank_1: dict[str, object]) -> Show | HangingRanks | None:
    judge = HangAnalyzer()
    report(judge, 0, 1.0, **{**IN_SCRIPT, "sequence": 8, "waits_in": "all_reduce[[4]]", **rank_0})
    return report(judge, 1, 1.0, **{**IN_SCRIPT, "sequence": 7, **rank_1})


def test_a_slow_checkpoint_is_not_named_before_half_of_its_limit() -> None:
    assert verdict({}, {"section": "checkpoint", "notice": 300.0}) is None


@pytest.mark.parametrize(
    ("rank_0", "rank_1"),
    [({}, {}), ({"sequence": 1}, {"sequence": 0, "limit": None})],
    ids=["in a step", "at its start"],
)
def test_a_rank_that_others_wait_for_is_named_and_not_killed_long_before_its_limit(
    rank_0: dict[str, object], rank_1: dict[str, object]
) -> None:
    named = verdict(rank_0, rank_1)
    assert (named.ranks, named.to_kill) == ((1,), ())


@pytest.mark.parametrize(
    "busy", [{"section": "forward"}, {"state": RankState.DEAF}], ids=["all compile", "all hold the GIL"]
)
def test_ranks_that_are_all_busy_are_not_reported_before_half_of_their_limit(busy: dict[str, object]) -> None:
    same = {"sequence": 8, "waits_in": "", **busy}
    assert verdict(same, same) is None
