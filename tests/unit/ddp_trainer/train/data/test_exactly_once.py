"""Each sample is used once in an epoch, whatever happens on the way."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_trainer.train.data.batch_plan import BatchPlan, SampleTracker, owned
from tests.support.train_builders import slice_ids


def samples_of(plan: BatchPlan, step: int, world: int) -> torch.Tensor:
    """Return the samples that the ranks of a world process in a step, rank by rank."""
    batch_slices = itertools.chain.from_iterable(owned(plan.batch_slices, world, rank) for rank in range(world))
    return torch.cat([slice_ids(plan, step, slice_index) for slice_index in batch_slices])


@dataclass
class Life:
    """One worker group: its ranks, its steps until it is killed, and the steps between saves."""

    world: int
    steps: int
    save_every: int


@dataclass
class Scenario:
    plan: BatchPlan
    lives: list[Life]


@dataclass
class History:
    """The state in a checkpoint: committed samples by step, and their account."""

    ledger: SampleTracker
    steps: list[list[int]] = field(default_factory=list)

    def commit(self, plan: BatchPlan, processed: torch.Tensor) -> None:
        self.steps.append(processed.tolist())
        self.ledger.commit(processed)
        if plan.is_epoch_end(len(self.steps) - 1):
            self.ledger.close_epoch()

    def saved(self) -> History:
        ledger = SampleTracker(1)
        ledger.load_state_dict(deepcopy(self.ledger.state_dict()))
        return History(ledger, list(self.steps))


def live(scenario: Scenario) -> History:
    """Run through all lives; the last one is not killed."""
    plan = scenario.plan
    checkpoint = History(SampleTracker(plan.samples))
    for life in scenario.lives:
        running = checkpoint.saved()
        for _ in range(life.steps):
            if len(running.steps) == plan.total_steps:
                return running
            running.commit(plan, samples_of(plan, len(running.steps), life.world))
            if len(running.steps) % life.save_every == 0:
                checkpoint = running.saved()
    return running


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    samples = draw(st.integers(1, 80))
    batch = draw(st.integers(1, 24))
    batch_slices = draw(st.integers(1, batch))
    seed, epochs = draw(st.integers(0, 2**63 - 1)), draw(st.integers(1, 3))
    plan = BatchPlan(samples=samples, global_batch=batch, batch_slices=batch_slices, seed=seed, epochs=epochs)
    worlds = st.integers(1, batch_slices)
    lives = draw(st.lists(st.builds(Life, worlds, st.integers(0, 12), st.integers(1, 5)), max_size=6))
    return Scenario(plan, [*lives, Life(draw(worlds), plan.total_steps, 1)])


PLAN = BatchPlan(samples=150, global_batch=32, batch_slices=8, seed=0, epochs=1)
TWICE_IN_ONE_EPOCH = Scenario(PLAN, [Life(3, 3, 2), Life(8, 2, 2), Life(5, 5, 1)])


@given(scenarios())
@example(TWICE_IN_ONE_EPOCH)
def test_every_sample_is_committed_exactly_once(scenario: Scenario) -> None:
    history, plan = live(scenario), scenario.plan
    assert len(history.steps) == plan.total_steps
    for start in range(0, plan.total_steps, plan.steps_per_epoch):
        epoch = itertools.chain(*history.steps[start : start + plan.steps_per_epoch])
        assert sorted(epoch) == list(range(plan.samples))
    assert (history.ledger.lost, history.ledger.repeated) == (0, 0)
    assert history.ledger.committed == plan.samples * plan.epochs


@given(scenarios())
@example(TWICE_IN_ONE_EPOCH)
def test_every_step_has_the_samples_that_one_rank_alone_would_give_it(scenario: Scenario) -> None:
    plan = scenario.plan
    alone = live(Scenario(plan, [Life(1, plan.total_steps, 1)]))
    assert [sorted(step) for step in live(scenario).steps] == [sorted(step) for step in alone.steps]


@given(st.integers(1, 70), st.lists(st.lists(st.integers(0, 69), min_size=1, max_size=9), max_size=6))
def test_the_account_equals_one_of_python_sets(samples: int, steps: list[list[int]]) -> None:
    ledger, seen, repeated = SampleTracker(samples), set[int](), 0
    for step in ([number % samples for number in taken] for taken in steps):
        ledger.commit(torch.tensor(step))
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
