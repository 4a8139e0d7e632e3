"""Tasks of the trainer that only these checks train."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import rowwise
from ddp_workloads.digits import Digits

SAMPLES: Final = 512
WIDTH: Final = 4096
PAUSE: Final = "BENCH_GPU_PAUSE"
"""Variable: seconds that reading a batch takes at least."""
FAULT: Final = "BENCH_GPU_FAULT"
"""Variable: ``assert``, ``address``, ``memory``."""
FAULT_ONCE: Final = "BENCH_GPU_FAULT_ONCE"
"""Variable: file that shows that the fault has happened, so that it does not happen again; empty for none."""
FAULT_STEP: Final = 5
OVERFLOW_PASS: Final = 40
"""By then the scale of the loss has settled."""
RATE: Final = 2.0**-7
SUMS_FLAGS: Final = (
    *("--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--learning-rate", str(RATE)),
    *("--schedule", "constant", "--warmup-steps", "0", "--global-batch", "32", "--batch-slices", "4"),
    *("--evaluate-every", "1000000", "--log-steps", "1"),
)


class IntegerRows:
    """Rows of small integers as float32; each depends on its index alone."""

    def __init__(self, count: int) -> None:
        self._columns = torch.arange(WIDTH)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    @rowwise
    def batch(self, ids: Tensor) -> Tensor:
        """Float32 ``(n, WIDTH)``, from 0 to 6."""
        time.sleep(float(os.environ.get(PAUSE, "0")))
        return ((ids[:, None] * 31 + self._columns * 17 + 1) % 7).float()


class Weights(nn.Module):
    """One weight per column; its gradient does not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        """Products, ``(n,)``."""
        return rows @ self.weight


class Sums:
    """A sum over all samples that steps have used, as weights.

    The gradient of a sample is the sample. All are small integers, batch and learning rate are powers of two, so every
    sum is exact in float32 in any order: with :data:`SUMS_FLAGS` the weights after a step have the same bits at 1, 2
    and 4 ranks, and a gradient that was lost, doubled or never reduced stays visible to the end.
    """

    name = "sums"

    def model(self) -> nn.Module:
        """Zeros."""
        return Weights()

    def train_samples(self) -> IntegerRows:
        """An epoch of 16 steps."""
        return IntegerRows(SAMPLES)

    def test_samples(self) -> IntegerRows:
        """None."""
        return IntegerRows(0)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The products themselves."""
        return model(batch)  # type: ignore[no-any-return] # a Module's call

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """The loss."""
        return {"loss": self.losses(model, batch).sum()}


class Faulty(Sums):
    """Sums whose device fails on the way, as :data:`FAULT` names it; a CPU raises what CUDA would."""

    name = "faulty"

    def __init__(self) -> None:
        self._passes = 0

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Start the fault and return the losses of ``Sums``. On a GPU the error surfaces where the host waits."""
        self._passes += 1
        happened = os.environ.get(FAULT_ONCE, "")
        if self._passes == FAULT_STEP and not (happened and Path(happened).exists()):
            if happened:
                Path(happened).touch()
            fail(os.environ[FAULT], batch.device)
        return super().losses(model, batch)


class OverflowOnce(Digits):
    """Digits whose gradients are too large for float16 in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self._passes = 0

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the losses of ``Digits``, times 1e30 in pass :data:`OVERFLOW_PASS`."""
        self._passes += 1
        return super().losses(model, batch) * (1e30 if self._passes == OVERFLOW_PASS else 1.0)


def fail(kind: str, device: torch.device) -> None:
    """Let a device fail.

    Args:
        kind: ``assert`` for an assertion in a kernel, ``address`` for a write to an address that is nowhere, ``memory``
            for more memory than there is.
        device: Which one; on a CPU the error is raised immediately.
    """
    if device.type == "cuda":
        {"assert": fail_assertion, "address": write_illegal_address, "memory": take_all_memory}[kind](device)
        return
    if kind == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 GiB.")
    what = "device-side assert triggered" if kind == "assert" else "an illegal memory access was encountered"
    raise torch.AcceleratorError(f"CUDA error: {what}")


def fail_assertion(device: torch.device) -> None:
    """Index beyond the end, which a kernel asserts."""
    table, index = torch.zeros(4, device=device), torch.tensor([1 << 20], device=device)
    table[index].add_(1)


def write_illegal_address(device: torch.device) -> None:
    """Write to an address that belongs to nothing."""
    from torch.cuda import _compile_kernel

    source = 'extern "C" __global__ void write(float* at) { *(float*)((char*)at + (1ull << 45)) = 1.0f; }'
    write = _compile_kernel(source, "write")
    write(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, device=device)])


def take_all_memory(device: torch.device) -> None:
    """Allocate more than the device has."""
    _, total = torch.cuda.mem_get_info(device)
    torch.empty(2 * total, dtype=torch.uint8, device=device)
