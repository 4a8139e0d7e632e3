"""The decision of all ranks before a step is committed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_trainer.train.config.options import LARGEST_BATCH
from ddp_trainer.train.step import StepDecision, StepReport, _as_tensor, _host_buffer, check, decide_step
from ddp_trainer.train.utils.errors import PeerFailed, WrongSamples
from tests.support.train_builders import ALONE


def a_decision(**changes: float) -> StepDecision:
    values = {"samples": 4, "digest": 99, "loss": 1.5, "failed": 0, "stop": 0, "save": 0, "skipped": 0}
    return StepDecision(**{"costs": (), "is_finite": True, **values, **changes})  # type: ignore[arg-type] # counts are ints in every use below


def test_a_report_comes_back_as_the_decision_of_a_group_of_one() -> None:
    assert decide_step(StepReport(samples=4, digest=99, loss=torch.tensor(1.5), stop=True), ALONE) == a_decision(stop=1)


def test_the_largest_possible_digest_is_exact() -> None:
    largest = LARGEST_BATCH * ((1 << 32) - 1)
    report = StepReport(samples=LARGEST_BATCH, digest=largest, loss=torch.tensor(0.0))
    assert decide_step(report, ALONE).digest == largest
    assert float(largest) != float(largest - 1)


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
        check(a_decision(**changes), step=7, samples=4, digest=99)


@pytest.mark.parametrize(
    ("loss", "flaw", "is_finite"),
    [(1.5, None, True), (1.5, 0.0, True), (math.nan, None, False), (-math.inf, 0.0, False), (1.5, math.nan, False)],
)
def test_the_decision_reports_nonfinite_losses_and_gradients(loss: float, flaw: float | None, is_finite: bool) -> None:
    flaws = None if flaw is None else torch.tensor(flaw)
    report = StepReport(samples=4, digest=99, loss=torch.tensor(loss), flaw=flaws)
    assert decide_step(report, ALONE).is_finite == is_finite


class Copies(TorchDispatchMode):
    """Records whether copies between devices are non-blocking."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.noted.append(bool((kwargs or {}).get("non_blocking")))
        return func(*args, **(kwargs or {}))


def test_a_report_gets_to_a_device_without_a_wait_for_it() -> None:
    device = torch.device("meta")  # like a GPU, it has no numbers that the host can read
    loss, flaw = torch.zeros((), device=device), torch.zeros((), device=device)
    with Copies() as copies:
        written = _as_tensor(StepReport(samples=4, digest=99, loss=loss, flaw=flaw), device)
    assert written.device == device
    assert copies.noted == [True]


def test_a_report_for_a_gpu_is_sent_from_memory_that_stays_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[bool] = []

    def empty(size: int, *, dtype: torch.dtype, pin_memory: bool) -> Tensor:
        pinned.append(pin_memory)
        return torch.zeros(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty)
    _host_buffer.cache_clear()
    assert _host_buffer(12, is_pinned=True) is _host_buffer(12, is_pinned=True)
    _host_buffer.cache_clear()
    assert pinned == [True]
