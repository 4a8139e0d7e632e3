"""Figures of GPUs by their CUDA names."""

from __future__ import annotations

import pytest

from ddp_trainer.common.gpu_specs import FIGURES, find_gpu_specs


@pytest.mark.parametrize("place", range(len(FIGURES)), ids=lambda place: FIGURES[place].begin)
def test_no_entry_is_hidden_by_one_before_it(place: int) -> None:
    assert find_gpu_specs(FIGURES[place].begin) is FIGURES[place]


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA GB300", 2500), ("NVIDIA B300 SXM6 AC", 2250), ("NVIDIA GB200", 2500), ("NVIDIA GH200 480GB", 990),
        ("NVIDIA H20", 148), ("NVIDIA H200", 989), ("NVIDIA H800", 989), ("NVIDIA H20-3e", 148),
    ],
)  # fmt: skip
def test_names_of_cuda_are_known(name: str, teraflops: float) -> None:
    assert find_gpu_specs(name).bf16_flops == teraflops * 1e12
