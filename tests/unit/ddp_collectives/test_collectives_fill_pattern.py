"""The pattern that results are compared with: exact, known to every rank, different wherever a mistake could hide."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_collectives.case import compare
from ddp_collectives.fill_pattern import UNTOUCHED, Pattern
from ddp_collectives.request import DTYPES

KINDS = [getattr(torch, name) for name in DTYPES]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("world", [1, 2, 3, 8, 130, 257, 300])
def test_the_sum_over_ranks_is_exact_in_every_dtype_and_any_order(world: int, dtype: torch.dtype) -> None:
    pattern = Pattern.of(world, dtype, "seed")
    addends = torch.stack([pattern.reduce_input(rank, 0, 500) for rank in range(world)])
    assert torch.equal(addends.sum(0), pattern.total(0, 500))
    running = torch.zeros(500, dtype=dtype)
    for addend in addends.flip(0):
        running += addend.to(dtype)
    assert torch.equal(running.double(), pattern.total(0, 500).double())


@given(start=st.integers(0, 2**31 - 200), length=st.integers(1, 100), source=st.integers(0, 9), cut=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_a_part_of_a_message_is_the_same_whoever_asks_for_it(start: int, length: int, source: int, cut: int) -> None:
    pattern = Pattern.of(10, torch.int64, start)
    middle = start + min(cut, length)
    whole = pattern.message(source, 3, start, start + length)
    parts = [pattern.message(source, 3, start, middle), pattern.message(source, 3, middle, start + length)]
    assert torch.equal(torch.cat(parts), whole)
    assert int(whole.min()) >= 0
    assert int(whole.max()) < UNTOUCHED


def test_messages_of_other_ranks_seeds_and_sizes_are_others() -> None:
    pattern = Pattern.of(4, torch.int8, 0, "gather", 4096)
    messages = [pattern.message(source, target, 0, 64) for source in range(4) for target in range(4)]
    messages += [
        Pattern.of(4, torch.int8, *other).message(0, 0, 0, 64) for other in [(1, "gather", 4096), (0, "gather", 8192)]
    ]
    for place, one in enumerate(messages):
        for other in messages[place + 1 :]:
            assert int((one == other).sum()) < 16


def test_every_value_of_a_message_occurs_about_equally_often() -> None:
    counts = torch.bincount(Pattern.of(2, torch.int8, 7).message(0, 1, 0, 127_000), minlength=127)
    assert len(counts) == 127
    assert int(counts.min()) > 800
    assert int(counts.max()) < 1200


def expected(start: int, stop: int) -> torch.Tensor:
    return torch.arange(start, stop) % 100


def test_a_right_result_is_not_called_wrong() -> None:
    assert compare(3, expected(0, 3_000_000).to(torch.uint8), expected) is None


@pytest.mark.parametrize("place", [0, 17, 1 << 20, 2_999_999])
def test_the_first_wrong_element_is_named_with_both_values_and_how_many_there_are(place: int) -> None:
    result = expected(0, 3_000_000).float()
    result[place] = -4
    result[-1] = float("nan")
    wrong = compare(3, result, expected)
    assert wrong
    assert (wrong.rank, wrong.element, wrong.expected) == (3, place, place % 100)
    assert wrong.count == (1 if place == 2_999_999 else 2)
    assert wrong.got == -4 or place == 2_999_999
