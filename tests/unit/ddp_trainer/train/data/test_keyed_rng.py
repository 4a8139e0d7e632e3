"""Random streams by seed, purpose, step and batch slice."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from tests.support.programs import captured

CPU = torch.device("cpu")


def test_a_stream_draws_the_same_whenever_it_is_entered() -> None:
    keyed = KeyedRng(7, CPU)
    drawn = []
    for _ in range(2):
        keyed.enter(Stream.MODEL, 3, 1)
        drawn.append(torch.rand(3).tolist())
        torch.rand(5)
    assert drawn[0] == drawn[1]


def test_streams_differ_by_seed_purpose_step_and_slice() -> None:
    keys = [(7, Stream.MODEL, 3, 1), (8, Stream.MODEL, 3, 1), (7, Stream.FETCH, 3, 1)]
    keys += [(7, Stream.MODEL, 4, 1), (7, Stream.MODEL, 3, 2), (7, Stream.MODEL, 1, 3)]
    firsts = set()
    for seed, stream, step, slice_index in keys:
        KeyedRng(seed, CPU).enter(stream, step, slice_index)
        firsts.add(torch.rand(1).item())
    assert len(firsts) == len(keys)


def drawn_by_users_code() -> tuple[float, float]:
    return random.random(), np.random.rand()  # noqa: NPY002 - as users' code does


@pytest.mark.parametrize("stream", [Stream.WEIGHTS, Stream.FETCH, Stream.SAMPLE])
def test_pythons_and_numpys_own_generators_follow_where_code_of_users_may_draw(stream: Stream) -> None:
    keyed = KeyedRng(7, CPU)
    drawn = []
    for step in (3, 4, 3):
        keyed.enter(stream, step, 1)
        drawn.append(drawn_by_users_code())
    assert drawn[0] == drawn[2]
    assert set(drawn[0]).isdisjoint(drawn[1])


def test_a_forward_pass_leaves_pythons_and_numpys_generators_alone() -> None:
    keyed = KeyedRng(7, CPU)
    keyed.enter(Stream.FETCH)
    drawn = [drawn_by_users_code(), drawn_by_users_code()]
    keyed.enter(Stream.FETCH)
    again = [drawn_by_users_code()]
    keyed.enter(Stream.MODEL, 3, 1)
    assert [*again, drawn_by_users_code()] == drawn


def test_without_numpy_all_else_is_keyed_and_numpy_stays_unimported() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import torch; from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream\n"
        "KeyedRng(7, torch.device('cpu')).enter(Stream.FETCH); print(torch.rand(()).item())\n"
    )
    done = captured([sys.executable, "-W", "ignore", "-c", program])
    KeyedRng(7, CPU).enter(Stream.FETCH)
    assert done.stdout == f"{torch.rand(()).item()}\n", done.stderr
