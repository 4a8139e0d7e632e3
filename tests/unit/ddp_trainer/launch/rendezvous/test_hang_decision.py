from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.launch.protocol.messages import HangingRanks, RankStates, Show, SuspectHang
from ddp_trainer.launch.rendezvous.hang_decision import ASK_SECONDS, FRESH_SECONDS, HangAnalyzer

NODES = ("a", "b")


def look(rank: int, **changes: object) -> RankStatus:
    seen = RankStatus(
        rank=rank, local_rank=0, node=f"w-{rank}", state=RankState.ALIVE, seconds=6.0, limit=10.0, sequence=8 - rank
    )
    return replace(seen, **changes)  # type: ignore[arg-type] # each test names fields of a RankStatus


def told(judge: HangAnalyzer, rank: int, now: float, **changes: object) -> Show | HangingRanks | None:
    return judge.update(NODES[rank], RankStates(generation=3, ranks=(look(rank, **changes),)), NODES, now)


def test_an_alarm_makes_the_store_ask_everybody_once() -> None:
    judge = HangAnalyzer()
    assert judge.update("a", SuspectHang(generation=3), NODES, 1.0) == Show(generation=3)
    assert judge.update("b", SuspectHang(generation=3), NODES, 1.0) is None
    assert judge.update("a", SuspectHang(generation=3), NODES, 1.0 + ASK_SECONDS) == Show(generation=3)


def test_nobody_is_named_before_all_nodes_have_told() -> None:
    judge = HangAnalyzer()
    assert told(judge, 0, 1.0) is None
    decision = told(judge, 1, 1.1)
    assert isinstance(decision, HangingRanks)
    assert (decision.ranks, decision.to_kill) == ((1,), ())
    assert decision.sentences[0].startswith("rank 1 on w-1 did not enter collective #8")


def test_looks_of_different_moments_are_not_compared() -> None:
    judge = HangAnalyzer()
    told(judge, 0, 1.0)
    assert told(judge, 1, 1.1 + FRESH_SECONDS) is None


def test_a_warning_comes_first_and_is_said_once_and_the_limit_is_for_acting() -> None:
    judge = HangAnalyzer()
    told(judge, 0, 1.0)
    assert isinstance(told(judge, 1, 1.0), HangingRanks)
    assert told(judge, 0, 2.0) is None
    assert told(judge, 1, 2.0) is None
    told(judge, 0, 6.0, seconds=11.0)
    decision = told(judge, 1, 6.0, seconds=11.0)
    assert isinstance(decision, HangingRanks)
    assert decision.to_kill == (1,)


def test_that_nobody_is_missing_is_said_once_and_kills_nobody() -> None:
    judge = HangAnalyzer()
    same = {"sequence": 8, "waits_in": "all_reduce[[4]]"}
    told(judge, 0, 1.0, **same)
    decision = told(judge, 1, 1.0, **same)
    assert isinstance(decision, HangingRanks)
    assert (decision.ranks, decision.to_kill) == ((), ())
    assert "another has ended early" in decision.sentences[0]
    assert told(judge, 1, 2.0, **same, seconds=30.0) is None


def test_who_went_on_and_hangs_again_is_named_again() -> None:
    judge = HangAnalyzer()
    told(judge, 0, 1.0)
    assert isinstance(told(judge, 1, 1.0), HangingRanks)
    assert told(judge, 1, 2.0, seconds=0.0) is None
    assert isinstance(told(judge, 1, 3.0), HangingRanks)


SCRIPT = {"limit": 600.0, "notice": 30.0, "seconds": 31.0}
"""A rank of a plain script whose limit is far away."""


def verdict(rank_0: dict[str, object], rank_1: dict[str, object]) -> Show | HangingRanks | None:
    judge = HangAnalyzer()
    told(judge, 0, 1.0, **{**SCRIPT, "sequence": 8, "waits_in": "all_reduce[[4]]", **rank_0})
    return told(judge, 1, 1.0, **{**SCRIPT, "sequence": 7, **rank_1})


def test_a_rank_that_others_wait_for_is_named_and_not_killed_long_before_its_limit() -> None:
    named = verdict({}, {})
    assert isinstance(named, HangingRanks)
    assert (named.ranks, named.to_kill) == ((1,), ())


def test_a_slow_loader_with_limits_of_its_own_is_not_named_before_half_of_them() -> None:
    assert verdict({}, {"section": "checkpoint", "notice": 300.0}) is None


def test_a_rank_that_loads_while_another_waits_in_the_first_collective_is_named_without_a_limit() -> None:
    named = verdict({"sequence": 1}, {"sequence": 0, "limit": None})
    assert isinstance(named, HangingRanks)
    assert (named.ranks, named.to_kill) == ((1,), ())


@pytest.mark.parametrize(
    "busy",
    [{"section": "forward"}, {"state": RankState.DEAF}],
    ids=["all compile", "all hold the GIL"],
)
def test_ranks_that_are_all_busy_are_not_reported_before_half_of_their_limit(busy: dict[str, object]) -> None:
    same = {"sequence": 8, "waits_in": "", **busy}
    assert verdict(same, same) is None
