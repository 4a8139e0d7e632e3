"""Non-finite gradients are found wherever they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddp_trainer.train.optim.optimizer import nonfinite_flag


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_that_is_not_finite_is_found_wherever_it_is(bad: float, dtype: torch.dtype) -> None:
    gradients = [torch.ones(3, dtype=dtype), torch.ones(2, 2, dtype=dtype)]
    before = [gradient.clone() for gradient in gradients]
    assert nonfinite_flag(gradients) == 0
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))
    gradients[1][1, 0] = bad
    assert nonfinite_flag(gradients) != 0
    assert nonfinite_flag(gradients, nn.utils.get_total_norm(gradients)) != 0


def test_no_gradients_have_no_flaw() -> None:
    assert nonfinite_flag([]) == 0


def test_torch_still_has_the_kernel_that_finds_flaws_fast() -> None:
    # Without it every step pays for a norm; nothing else breaks.
    assert hasattr(torch, "_amp_foreach_non_finite_check_and_unscale_")
