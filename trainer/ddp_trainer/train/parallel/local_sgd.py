"""Strategy ``local-sgd``: each rank steps by its own gradients, and ranks average their weights every few steps.

Ranks exchange only the commit vote in every step, 96 bytes instead of all gradients, so the account of samples stays
exact. Unlike with all other strategies, the result depends on the number of ranks.

Between two synchronizations the weights differ between ranks, and no single state describes the run. Checkpoints, the
end of an epoch or of the run, and a requested stop therefore wait for a synchronization. A restart repeats at most the
steps since the last checkpoint, which is always a synchronized state. The optimizer's moments are averaged together
with the weights. Any number of ranks can therefore resume from rank 0's state.

Source: S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from ddp_trainer.train.parallel.rank_collectives import average, send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy


class LocalSgd(Strategy):
    """Local SGD; with plain SGD and a synchronization in every step it equals ``ddp`` up to rounding.

    Each rank scales its gradients as if all ranks had as many samples as it has. The average over ranks then weights
    every sample equally.
    """

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._every = parts.config.sync_steps
        self._plan = parts.plan
        self._passes = 0
        send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Reset the count of passes."""
        self._passes = 0

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of one more pass.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        super().backward(losses, samples)
        self._passes += 1

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Keep the gradients local; a rank without samples steps by zeros, its share of the average."""
        if not self._passes:
            for weight in self._weights:
                weight.grad = torch.zeros_like(weight)

    def on_step_end(self, step: int, optimizer: Optimizer) -> None:
        """Average weights and moments over ranks if a synchronization is due."""
        if self.is_synchronized_after(step + 1):
            average([weight.detach() for weight in self._weights] + _optimizer_moments(optimizer), self._group)

    def is_synchronized_after(self, steps: int) -> bool:
        """Return True after every ``sync_steps`` steps, at the end of an epoch, and at the end of the run."""
        plan = self._plan
        return steps % self._every == 0 or steps % plan.steps_per_epoch == 0 or steps >= plan.total_steps


def _optimizer_moments(optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's moments in the same order on all ranks; step counters are equal already."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
    tensors = [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in tensors if tensor.dim() and tensor.is_floating_point()]
