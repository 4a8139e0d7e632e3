"""The account of seen, repeated and lost samples."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_trainer.train.data.batch_plan import SampleTracker


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_every_epoch_begins_with_nothing_seen() -> None:
    ledger = SampleTracker(2)
    for _ in range(3):
        ledger.commit(ids(0, 1))
        ledger.close_epoch()
    assert (ledger.lost, ledger.repeated, ledger.committed) == (0, 0, 6)


@given(st.integers(1, 70), st.lists(st.lists(st.integers(0, 69), min_size=1, max_size=9), max_size=6))
def test_the_account_equals_one_of_python_sets(samples: int, steps: list[list[int]]) -> None:
    ledger, seen, repeated = SampleTracker(samples), set[int](), 0
    for step in ([number % samples for number in taken] for taken in steps):
        ledger.commit(ids(*step))
        repeated += len(step) - len(set(step) - seen)
        seen.update(step)
    stored = ledger.state_dict()["seen"]
    assert ledger.repeated == repeated
    assert len(stored) == -(-samples // 8), "one bit for each sample"
    assert {i for i in range(samples) if stored[i // 8] >> i % 8 & 1} == seen
    restored = SampleTracker(samples)
    restored.load_state_dict(ledger.state_dict())
    restored.close_epoch()
    assert restored.lost == samples - len(seen)


def test_a_commit_only_indexes_the_whole_account() -> None:
    class Whole(TorchDispatchMode):
        """Names of the operations on tensors that are larger than the step."""

        used: ClassVar[set[str]] = set()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(arg, torch.Tensor) and arg.numel() > 4096 for arg in args):
                self.used.add(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    ledger = SampleTracker(10_000_000)
    with Whole():
        ledger.commit(torch.arange(0, 8_192_000, 2000))
        assert ledger.repeated == 0
    assert Whole.used <= {"index_select", "index_add_"}


def test_the_account_is_the_same_whether_it_is_looked_at_after_every_step_or_at_the_end() -> None:
    inspected, left = SampleTracker(5000), SampleTracker(5000)
    seen: set[int] = set()
    for step in range(150):
        taken = torch.arange(step * 40, step * 40 + 64) % 5000
        seen.update(taken.tolist())
        inspected.commit(taken)
        left.commit(taken)
        assert inspected.repeated == inspected.committed - len(seen), step
    assert left.repeated == inspected.repeated
    assert left.state_dict()["seen"].equal(inspected.state_dict()["seen"])


def test_steps_after_the_last_save_are_not_in_a_ledger_that_goes_back_to_it() -> None:
    ledger = SampleTracker(11)
    ledger.commit(ids(0, 1))
    stored = ledger.state_dict()
    ledger.commit(ids(2, 3))
    ledger.load_state_dict(stored)
    ledger.commit(ids(2, 3))
    assert (ledger.committed, ledger.repeated) == (4, 0)
