"""``local-sgd``: every rank steps by its own gradients, and weights are averaged every so many steps.

The asynchronous end of the scale: S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. Only
the vote is exchanged in every step, 56 bytes in place of all gradients, so the account of samples stays exact. The
result does depend on the number of ranks, as no other strategy's does.

Between synchronisations the ranks' weights differ, and no single state describes the run. So checkpoints, the end of
an epoch and of the run, and leaving when told to stop, all wait for a synchronisation; a restart repeats at most the
steps since the last checkpoint, which is one. Moments of the optimizer are averaged along with the weights, so that any
number of ranks can go on from rank 0's state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.train.parallel.rank_collectives import average, send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy


class LocalSgd(Strategy):
    """With SGD and a synchronisation in every step it equals ``ddp`` up to rounding.

    Each rank steps as if all had as many samples as it has; the average over ranks then weighs every sample the same.
    """

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._every = parts.config.sync_steps
        self._plan = parts.plan
        self._passes = 0
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """No pass yet."""
        self._passes = 0

    def backward(self, losses: Tensor, samples: int) -> None:
        """One more pass."""
        super().backward(losses, samples)
        self._passes += 1

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Nothing is exchanged; a rank without samples steps by zeros, as its share of the average."""
        if not self._passes:
            for weight in self._weights:
                weight.grad = torch.zeros_like(weight)

    def committed(self, step: int, optimizer: Optimizer) -> None:
        """Average weights and moments when it is time."""
        if self.is_synchronised(step + 1):
            average([weight.detach() for weight in self._weights] + _moments(optimizer), self._group)

    def is_synchronised(self, steps: int) -> bool:
        """After every so many steps, an epoch, and the run."""
        plan = self._plan
        return steps % self._every == 0 or steps % plan.steps_per_epoch == 0 or steps >= plan.total_steps


def _moments(optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's running means, in an order that is the same on all ranks; its step counters are equal already."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
    tensors = [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in tensors if tensor.dim() and tensor.is_floating_point()]
