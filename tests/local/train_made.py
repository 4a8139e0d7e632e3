"""An operation that models use, by which a test sees how often a weight was given its numbers.

It is noted as ever where a model is built without memory. So it runs when a weight is made, and not when it is not.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

runs = 0
"""In this process."""
_own = torch.library.Library("made", "DEF")
_own.define("halve_(Tensor(a!) x) -> ()")
_own.impl("halve_", lambda _: None, "Meta")


def _halve(x: Tensor) -> None:
    global runs  # noqa: PLW0603 - of this process
    runs += 1
    x.mul_(0.5)
    if file := os.environ.get("MADE"):
        with Path(file).open("a") as told:
            told.write(f"{os.getpid()}\n")


_own.impl("halve_", _halve, "CPU")


def halve(weight: Tensor) -> None:
    """In place; a line more in the file that ``MADE`` names, if it does."""
    with torch.no_grad():
        torch.ops.made.halve_(weight)
