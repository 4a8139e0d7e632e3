"""Objects of the installed torch have the private attributes that the trainer reads. Names of modules and classes are
compared with every version of torch in ``tests/unit/tools/test_torch_api.py``.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (nn.Parameter(torch.ones(1)), ("_base", "_use_count", "_backward_hooks", "_post_accumulate_grad_hooks")),
        (torch.ops.aten.add.Tensor, ("_schema",)),
        (torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info, ("is_write",)),
        (nn.Linear(1, 1), ("_compiled_call_impl",)),
        (nn.parallel.DistributedDataParallel, ("_check_reducer_finalized",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_objects_of_this_torch_have_what_the_trainer_asks_them(thing: object, names: tuple[str, ...]) -> None:
    assert all(hasattr(thing, name) for name in names)
