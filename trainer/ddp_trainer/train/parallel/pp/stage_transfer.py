"""What passes between the stages of a pipeline: form and timing of the activations, precision and random streams.

Only plain tensors can be sent. A slice leaves its stage as this rank's local tensor, and the next stage restores the
DTensor: the ranks of both stages have the same arrangement.

All schedules of torch wait for transfers between stages in one private function. :func:`time_transfers` replaces it
while a schedule runs, and restores it afterwards. On a torch without that function nothing is measured, and a test
fails.

The schedule calls stages, not the task's losses. The wrappers of :mod:`ddp_trainer.train.transforms.model_transforms`
around the losses therefore do not reach them; :class:`StageComputation` applies the same to each stage. Activations
between stages have the dtype of the weights. The receiving stage casts them down again where one process would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor, Replicate

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.mesh.sharded_state import from_local, local_shard
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.transforms.precision import precision_context


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Form of the activations that one stage passes to the next, the same for every micro-batch."""

    here: Tensor
    """This rank's local part, on the meta device."""
    dtensor: DTensor | None = None
    """The distributed tensor; None if each rank holds the whole tensor."""

    @classmethod
    def like(cls, output: Tensor) -> Self:
        """Return the form of an output on the meta device; partial sums become replicated.

        Args:
            output: Output of a stage on the meta device, of any shape and dtype.
        """
        if not isinstance(output, DTensor):
            return cls(output)
        placements = [Replicate() if placement.is_partial() else placement for placement in output.placements]
        dtensor = output.redistribute(placements=placements)
        return cls(dtensor.to_local(), dtensor)

    def local_output(self, output: Tensor) -> Tensor:
        """Return this rank's local part of an output as a plain tensor, differentiably.

        Args:
            output: Output of the stage, with the shape of this form and any float dtype.

        Returns:
            Tensor with the shape and dtype of :attr:`here`.
        """
        output = output.to(self.here.dtype)  # autocast makes it narrower than the next stage expects
        if self.dtensor is None or not isinstance(output, DTensor):
            return output
        # A copy: torch detaches stage outputs in place (zero-bubble schedules), which views do not allow.
        return output.redistribute(placements=self.dtensor.placements).to_local().clone()

    def from_local(self, here: Tensor) -> Tensor:
        """Return the tensor or DTensor that a received local part belongs to; the inverse of :meth:`local_output`.

        Args:
            here: Tensor with the shape and dtype of :attr:`here`.
        """
        return here if self.dtensor is None else from_local(here, self.dtensor)


class BetweenStreams(nn.Module):
    """Wrapper of a stage whose inputs and outputs are plain tensors."""

    def __init__(self, stage: nn.Module, taken: TensorSpec, given: TensorSpec) -> None:
        super().__init__()
        self.stage = stage
        self._taken, self._given = taken, given

    def forward(self, here: Tensor) -> Tensor:
        """Return this rank's local part of the stage's output.

        Args:
            here: Local part of the input, as the previous stage sends it.
        """
        return self._given.local_output(self.stage(self._taken.from_local(here)))


def without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor or DTensor of the same form on torch's meta device.

    Args:
        tensor: Tensor or DTensor of any shape and dtype.
    """
    return from_local(torch.empty_like(local_shard(tensor), device="meta"), tensor)


WAIT: Final = "_wait_batch_p2p"


@contextmanager
def time_transfers(waits: CommWaits) -> Iterator[None]:
    """Measure how long schedules wait for transfers inside this context."""
    inner: Any = getattr(schedules, WAIT, None)
    if inner is None:
        yield
        return

    def wait(work: Any) -> None:
        if not work:
            return
        with waits.during(Wait.STAGE):
            inner(work)

    setattr(schedules, WAIT, wait)
    try:
        yield
    finally:
        setattr(schedules, WAIT, inner)


class StageComputation:
    """Wrapper of one rank's stages, in place: autocast and keyed random streams."""

    def __init__(self, own: Mapping[int, nn.Module], precision: PrecisionName, seed: int, device: torch.device) -> None:
        """Wrap the stages in place.

        Args:
            own: This rank's modules, by their number in the pipeline.
            precision: The precision in which they compute.
            seed: The seed of the run.
            device: The device of the modules.
        """
        self._random = KeyedRng(seed, device)
        self._context = precision_context(precision, device)
        self._key = 0
        self._passes = dict.fromkeys(own, 0)
        for number, module in own.items():
            module.forward = self._computed(module.forward, number)

    def begin(self) -> None:
        """Start a step; the random stream of its samples must be the current one."""
        self._key = torch.initial_seed()
        self._passes = dict.fromkeys(self._passes, 0)

    def _computed(self, forward: Callable[..., Any], number: int) -> Callable[..., Any]:
        def run(stream: torch.Tensor) -> Any:
            if stream.is_meta or not torch.is_grad_enabled():
                return forward(stream)
            # Keyed by stage and micro-batch, which every schedule passes in order: all schedules draw the same numbers.
            self._random.go_on(self._key, number, self._passes[number])
            self._passes[number] += 1
            with self._context():
                return forward(stream)

        return run
