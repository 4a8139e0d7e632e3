"""How many samples a loader has handed out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddp_trainer.metrics.record.step_detector import SampleCounter, size_of

images = [np.zeros((3, 32, 32)), np.zeros((3, 16, 16))]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (np.zeros((8, 2)), 8),
        ((np.zeros((8, 2)), np.zeros(8)), 8),
        ({"input_ids": np.zeros((4, 128)), "labels": np.zeros((4, 128))}, 4),
        ([{"image": np.zeros((5, 2))}], 5),
        (np.float32(1), 0),
        (["a", "b"], 0),
        (None, 0),
        ([[[[[[np.zeros(3)]]]]]], 0),
    ],
)
def test_the_first_dimension_of_the_first_tensor_is_the_size(batch: Any, size: int) -> None:
    assert size_of(batch) == size


def counter_of(*indices: Any, is_stream: bool = False) -> SampleCounter:
    counter = SampleCounter(object(), is_stream=is_stream)
    for index in indices:
        counter.record_indices(index)
    return counter


def test_a_batch_has_as_many_samples_as_indices_were_drawn_whatever_it_looks_like() -> None:
    counter = counter_of([1, 2], [3, 4], [5])
    assert [counter.count(images) for _ in range(3)] == [2, 2, 1]


def test_the_last_batch_of_a_stream_is_as_large_as_it_is() -> None:
    counter = counter_of(*[[None] * 4] * 3, is_stream=True)
    assert [counter.count(np.zeros((rows, 2))) for rows in (4, 4, 1)] == [4, 4, 1]


def test_samples_without_batches_count_one_by_one() -> None:
    counter = counter_of(0, 1, 2)
    assert [counter.count("a sample") for _ in range(3)] == [1, 1, 1]
