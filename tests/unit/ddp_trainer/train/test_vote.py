"""What the ranks agree on before a step counts."""

from __future__ import annotations

import math

import pytest
import torch

from ddp_trainer.train.config import LARGEST_BATCH
from ddp_trainer.train.errors import PeerFailed, WrongSamples
from ddp_trainer.train.group import Group
from ddp_trainer.train.vote import Ballot, Verdict, check, vote

ALONE = Group(0, 1, "none", torch.device("cpu"))


def a_verdict(**changes: float) -> Verdict:
    values = {"samples": 4, "digest": 99, "loss": 1.5, "failed": 0, "stop": 0, "save": 0, "skipped": 0, "flaw": 0}
    return Verdict(**{"busy": (), **values, **changes})  # type: ignore[arg-type] # counts are ints in every use below


def test_a_ballot_comes_back_as_the_verdict_of_a_group_of_one() -> None:
    ballot = Ballot(samples=4, digest=99, loss=torch.tensor(1.5), stop=True)
    assert vote(ballot, ALONE) == a_verdict(stop=1)


def test_the_largest_possible_digest_is_exact() -> None:
    largest = LARGEST_BATCH * ((1 << 32) - 1)
    assert vote(Ballot(samples=LARGEST_BATCH, digest=largest, loss=torch.tensor(0.0)), ALONE).digest == largest
    assert float(largest) != float(largest - 1)


def test_what_the_step_demands_passes() -> None:
    check(a_verdict(), step=7, samples=4, digest=99)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"samples": 5}, WrongSamples, r"5 samples in step 7, which has 4"),
        ({"digest": 98}, WrongSamples, r"not the ones that belong to it"),
        ({"failed": 1}, PeerFailed, r"1 of the other ranks failed in step 7"),
    ],
)
def test_anything_else_is_not_committed(changes: dict[str, float], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check(a_verdict(**changes), step=7, samples=4, digest=99)


@pytest.mark.parametrize(
    "changes", [{"loss": float("nan")}, {"loss": float("-inf")}, {"flaw": 1.0}, {"flaw": math.nan}]
)
def test_a_flaw_of_any_rank_is_known_to_all(changes: dict[str, float]) -> None:
    assert a_verdict().is_finite
    assert not a_verdict(**changes).is_finite


def test_a_flaw_rides_in_the_vote() -> None:
    flaw = torch.tensor(float("nan"))
    assert not vote(Ballot(samples=4, digest=99, loss=torch.tensor(1.5), flaw=flaw), ALONE).is_finite
    assert vote(Ballot(samples=4, digest=99, loss=torch.tensor(1.5), flaw=torch.zeros(())), ALONE).is_finite
