"""What passes from one stage of a pipeline to the next, where each rank of a stage has a slice of it.

Only tensors can be sent, so a slice leaves its stage as the tensor that it is on this rank, and becomes a slice of the
whole again where it arrives: the ranks of the next stage lie as those of this one do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate


@dataclass(frozen=True, slots=True)
class Stream:
    """The form of what is passed on, the same for every micro-batch."""

    here: Tensor
    """On the meta device: what of it this rank has."""
    devices: DeviceMesh | None = None
    """Over which ranks it lies; None of a tensor that each has whole."""
    placements: Sequence[Placement] = ()
    shape: torch.Size | None = None
    """Of the whole."""
    stride: tuple[int, ...] | None = None

    @classmethod
    def like(cls, output: Tensor) -> Self:
        """The form of an output without memory; sums that are undone are passed on done."""
        if not isinstance(output, DTensor):
            return cls(output)
        placements = [Replicate() if each.is_partial() else each for each in output.placements]
        done = output.redistribute(placements=placements)
        return cls(done.to_local(), done.device_mesh, tuple(placements), done.shape, done.stride())

    def piece(self, output: Tensor) -> Tensor:
        """This rank's piece of an output, a plain tensor; gradients find the way back."""
        output = output.to(self.here.dtype)  # autocast makes it narrower than the next stage expects
        if not isinstance(output, DTensor):
            return output
        # A copy, since torch detaches what stages give in place, which views do not allow (zero-bubble schedules).
        return output.redistribute(placements=self.placements).to_local().clone()

    def joined(self, here: Tensor) -> Tensor:
        """The reverse."""
        if self.devices is None:
            return here
        return DTensor.from_local(
            here, self.devices, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


class BetweenStreams(nn.Module):
    """A stage that takes and gives plain tensors."""

    def __init__(self, stage: nn.Module, taken: Stream, given: Stream) -> None:
        super().__init__()
        self.stage = stage
        self._taken, self._given = taken, given

    def forward(self, here: Tensor) -> Tensor:
        """What the stage gives."""
        return self._given.piece(self.stage(self._taken.joined(here)))


def without_memory(tensor: Tensor) -> Tensor:
    """A tensor of the same form on torch's meta device."""
    if not isinstance(tensor, DTensor):
        return torch.empty_like(tensor, device="meta")
    here = torch.empty_like(tensor.to_local(), device="meta")
    return DTensor.from_local(
        here, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
