"""Who gives whose pieces to whom when the ranks of a spread model are others than before."""

from __future__ import annotations

import pytest

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.recovery.peer_recovery import kind_of, transfer_pairs


@pytest.mark.parametrize(
    ("slots", "replica", "expected"),
    [
        ([0, 1, 0, 1], 2, []),
        ([0, 1, -1, 1], 2, [(0, 2)]),
        ([0, 1, 0, 1, -1, -1, -1, -1], 2, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ([1, 0, 1], 1 + 1, [(1, 0), (0, 1), (1, 2)]),
        ([0, -1, 0], 1, [(0, 1)]),
    ],
)
def test_holders_take_turns_to_give_and_nobody_gets_what_it_has(
    slots: list[int], replica: int, expected: list[tuple[int, int]]
) -> None:
    assert transfer_pairs(slots, replica, len(slots)) == expected
    got = {target: slots[source] for source, target in transfer_pairs(slots, replica, len(slots))}
    assert all(got.get(rank, held) == rank % replica for rank, held in enumerate(slots))


def test_a_rank_without_a_place_gives_what_it_holds_and_gets_nothing() -> None:
    assert transfer_pairs([0, 0, 1], 2, places=2) == [(2, 1)]
    assert transfer_pairs([0, 1, 0], 2, places=2) == []


def test_replicas_that_are_cut_alike_hold_the_same_and_others_do_not() -> None:
    kinds = [Layout(shard=2), Layout(replicate=3, shard=2), Layout(tp=2), Layout(pp=2), Layout(shard=4), Layout()]
    numbers = [kind_of(layout) for layout in kinds]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == len(kinds) - 1
