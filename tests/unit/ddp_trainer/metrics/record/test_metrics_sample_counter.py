"""How many samples a loader has handed out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddp_trainer.metrics.record.sample_counter import SampleCounter, size_of

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


def test_a_batch_has_as_many_samples_as_indices_were_drawn_whatever_it_looks_like() -> None:
    intake, sampler = SampleCounter(), object()
    for index in ([1, 2], [3, 4], [5]):
        intake.record_indices(sampler, index)
    for _ in range(3):
        intake.record_batch(images, is_stream=False)
    assert intake.take() == 5


def test_a_pass_that_was_left_half_way_leaves_nothing_behind() -> None:
    intake = SampleCounter()
    first, second = object(), object()
    for _ in range(4):
        intake.record_indices(first, [1, 2])
    intake.record_indices(second, [1, 2, 3])
    intake.record_batch(images, is_stream=False)
    assert intake.take() == 3


def test_the_last_batch_of_a_stream_is_as_large_as_it_is() -> None:
    intake, sampler = SampleCounter(), object()
    for rows in (4, 4, 1):
        intake.record_indices(sampler, [None] * 4)
        intake.record_batch(np.zeros((rows, 2)), is_stream=True)
    assert intake.take() == 9


def test_samples_without_batches_count_one_by_one() -> None:
    intake, sampler = SampleCounter(), object()
    for index in range(3):
        intake.record_indices(sampler, index)
        intake.record_batch("a sample", is_stream=False)
    assert intake.take() == 3


def test_what_was_trained_with_stays_when_the_loader_ends() -> None:
    intake = SampleCounter()
    intake.record_batch(np.zeros((2, 1)), is_stream=False)
    assert intake.take() == 2
    intake.record_batch(np.zeros((2, 1)), is_stream=False)
    intake.ended()
    assert intake.take() == 2
