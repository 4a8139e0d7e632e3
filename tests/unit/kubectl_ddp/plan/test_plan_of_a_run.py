"""What a plan says of memory, against every tensor of a run: the smallest of what ``bench plan`` measures."""

from __future__ import annotations

import pytest

from bench.drivers.tensor_memory import peak_bytes
from bench.workloads.gpt_steps import Size, estimate_memory, train
from kubectl_ddp.plan.recomputation import ALL, CHEAP, Recomputation

SMALL = {"layers": 3, "width": 128, "heads": 2, "window": 64}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the profiler, where a machine cannot count cycles
@pytest.mark.parametrize(
    "size",
    [
        Size(**SMALL, samples=8),
        Size(**SMALL, samples=8, again=ALL),
        Size(**SMALL, samples=8, again=CHEAP),
        Size(**SMALL, samples=8, again=Recomputation(2)),
        Size(**SMALL, samples=1, passes=2),
        Size(**SMALL, samples=4, vocabulary=4096),
    ],
    ids=str,
)
def test_memory_is_foretold_within_a_tenth(size: Size) -> None:
    assert estimate_memory(size).total == pytest.approx(peak_bytes(lambda: train(size)), rel=0.1)
