"""The order of worker groups by fences, of which some come from wrong clocks."""

from __future__ import annotations

from ddp_trainer.process.fence import is_valid_fence, precedence

NOW = 1_800_000_000.0
FENCE = int(NOW * 1000)
DAY = 86_400_000


def test_a_fence_is_believed_up_to_a_day_ahead() -> None:
    assert is_valid_fence(0, NOW)
    assert is_valid_fence(FENCE + DAY, NOW)
    assert not is_valid_fence(FENCE + DAY + 1, NOW)
    assert not is_valid_fence(10**4000, NOW)


def test_a_fence_that_is_believed_comes_after_each_that_is_not() -> None:
    year = FENCE + 365 * DAY
    fences = [year + 1, FENCE + 1, year, FENCE, 10**4000]
    assert sorted(fences, key=lambda fence: precedence(fence, NOW)) == [year, year + 1, 10**4000, FENCE, FENCE + 1]
