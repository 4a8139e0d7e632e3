"""Task of ``bench parallel``: a small GPT on rows of numbers, divided by its own plan and by a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tests.local.workloads import train_layouts


class LargeNumbers(train_layouts.Numbers):
    """The model of the tests, four times as large."""

    vocabulary = 32
    window = 16
    heads = 4
    width = 32
    rows = 203


class WrongTpPlan(LargeNumbers):
    """The perceptrons cut, and what their halves give never added up: no error, and no model either."""

    def tp_plan(self, model: nn.Module) -> Mapping[str, Any]:
        """Return a wrong plan, which takes each rank's part for the whole."""
        from torch.distributed.tensor import Partial
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        del model
        return {"blocks.*.mlp.hidden": ColwiseParallel(), "blocks.*.mlp.out": RowwiseParallel(output_layouts=Partial())}
