"""Results of pairs of nodes reveal a faulty node, a faulty path, or neither."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from ddp_collectives.pair_analysis import ALONE, PairResult, Suspect, find_suspects, outcome, round_robin_pairs

FULL = 100.0
UNCLEAR = "0 (host-0) and 1 (host-1) fail together, and the faulty one is unknown: measure with more nodes or rounds."
SHARE = 0.7


@pytest.mark.parametrize("count", range(2, 12))
def test_every_two_nodes_meet_once_and_no_node_is_in_two_pairs_of_a_round(count: int) -> None:
    nodes = [10 * node for node in range(count)]
    turns = list(round_robin_pairs(nodes, 99))
    assert sorted(pair for turn in turns for pair in turn) == sorted(combinations(nodes, 2))
    for turn in turns:
        met = [node for pair in turn for node in pair]
        assert len(met) == len(set(met)) >= count - 1
    assert [len(list(round_robin_pairs(nodes, few))) for few in (0, 1)] == [0, 1]


def results(nodes: int, turns: int, speed: Callable[[int, int], float | None], alone: bool = False) -> list[PairResult]:
    found = [PairResult(round=ALONE, nodes=(node,), bus_bytes_per_second=FULL) for node in range(nodes) if alone]
    for number, turn in enumerate(round_robin_pairs(range(nodes), turns), start=1):
        found += [PairResult(round=number, nodes=pair, bus_bytes_per_second=speed(*pair)) for pair in turn]
    return found


def slowed(bad: int, to: float | None) -> Callable[[int, int], float | None]:
    return lambda one, other: to if bad in {one, other} else FULL


@pytest.mark.parametrize("nodes", range(3, 9))
@pytest.mark.parametrize("to", [50.0, 1.0, None])
def test_a_node_that_does_badly_with_every_partner_is_named(nodes: int, to: float | None) -> None:
    for bad in range(nodes):
        found = find_suspects(results(nodes, 3, slowed(bad, to)), SHARE)
        assert found == [Suspect(nodes=(bad,), is_sure=True, has_failed=to is None)]


def test_two_bad_nodes_of_eight_are_both_named() -> None:
    found = find_suspects(results(8, 4, lambda one, other: None if {one, other} & {2, 5} else FULL), SHARE)
    assert [item.nodes for item in found] == [(2,), (5,)]


def test_a_path_between_two_nodes_that_do_well_with_others_is_named() -> None:
    found = find_suspects(results(4, 3, lambda one, other: 5.0 if {one, other} == {1, 3} else FULL), SHARE)
    assert found == [Suspect(nodes=(1, 3), is_sure=True, has_failed=False)]


def test_a_node_that_is_slow_by_itself_is_named_even_of_two() -> None:
    pairings = results(4, 1, slowed(2, 20.0), alone=True)
    pairings[2] = PairResult(round=ALONE, nodes=(2,), bus_bytes_per_second=20.0)
    assert find_suspects(pairings, SHARE) == [Suspect(nodes=(2,), is_sure=True, has_failed=False)]


@pytest.mark.parametrize("nodes", [2, 4])
def test_no_node_is_named_where_all_pairs_fail(nodes: int) -> None:
    found = find_suspects(results(nodes, 3, lambda one, other: None), SHARE)
    assert found == [Suspect(nodes=tuple(range(nodes)), is_sure=False, has_failed=True)]


def test_the_sentence_names_the_node_and_the_exit_code_tells_failed_from_slow() -> None:
    names = {node: f"{node} (host-{node})" for node in range(4)}
    fails = "Node 2 (host-2) fails with every partner, and they do well without it: take it out."
    assert outcome(results(4, 3, slowed(2, None)), names, SHARE) == (1, fails)
    assert outcome(results(4, 3, slowed(2, 9.0)), names, SHARE)[0] == 3
    assert outcome(results(4, 3, slowed(9, 9.0)), names, SHARE) == (0, "")
    assert outcome(results(2, 1, slowed(1, None)), names, SHARE) == (1, UNCLEAR)
