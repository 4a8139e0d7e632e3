"""The pattern that results are compared with: exact, known to every rank, different wherever a mistake could hide."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_collectives.operations import UNTOUCHED, Pattern, find_difference


@pytest.mark.parametrize("world", [1, 2, 3, 8, 130, 300])
def test_the_sum_over_ranks_is_exact_in_any_order(world: int) -> None:
    pattern = Pattern(7, world)
    addends = torch.stack([pattern.addends(rank, 0, 500) for rank in range(world)])
    running = torch.zeros(500)
    for addend in addends.flip(0):
        running += addend
    assert torch.equal(addends.sum(0), pattern.total(0, 500))
    assert torch.equal(running.double(), pattern.total(0, 500).double())


@given(start=st.integers(0, 2**31 - 200), length=st.integers(1, 100), source=st.integers(0, 9), cut=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_a_part_of_a_message_is_the_same_whoever_asks_for_it(start: int, length: int, source: int, cut: int) -> None:
    pattern = Pattern(start, 10)
    middle = start + min(cut, length)
    complete = pattern.message(source, 3, start, start + length)
    parts = [pattern.message(source, 3, start, middle), pattern.message(source, 3, middle, start + length)]
    assert torch.equal(torch.cat(parts), complete)
    assert int(complete.min()) >= 0
    assert int(complete.max()) < UNTOUCHED


def test_messages_of_other_ranks_and_measurements_are_others() -> None:
    pattern = Pattern(1, 4)
    messages = [pattern.message(source, target, 0, 64) for source in range(4) for target in range(4)]
    messages += [Pattern(salt, 4).message(0, 0, 0, 64) for salt in (0x2B61A3C4, 0x71D20F55)]
    for place, one in enumerate(messages):
        for other in messages[place + 1 :]:
            assert int((one == other).sum()) < 16


def expected(start: int, stop: int) -> torch.Tensor:
    return torch.arange(start, stop) % 100


def test_a_right_result_is_not_called_wrong() -> None:
    assert find_difference(expected(0, 3_000_000).float(), expected) == ""


@pytest.mark.parametrize("place", [0, 17, 1 << 20])
def test_the_first_wrong_element_is_named_with_both_values_and_how_many_there_are(place: int) -> None:
    result = expected(0, 3_000_000).float()
    result[place] = -4
    result[-1] = float("nan")
    wanted = f"got -4 for {place % 100} at element {place}, 2 of 3000000 elements are wrong"
    assert find_difference(result, expected) == wanted
