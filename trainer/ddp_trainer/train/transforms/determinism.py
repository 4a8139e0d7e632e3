"""``--deterministic``: the same bits on every run on the same kind of machine, or an error that names the operation."""

from __future__ import annotations

import os

import torch


def be_deterministic() -> None:
    """Allow only deterministic algorithms; call it before the first work on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    try:
        # The public function also configures the compiler, which it has to import: 6 s.
        torch._C._set_deterministic_algorithms(True)  # noqa: SLF001 - the rest of the public function
    except (AttributeError, TypeError):
        torch.use_deterministic_algorithms(mode=True)
