"""State of a sharded model: gathering it, distributing it, and the norm of its gradients.

Weights, gradients and optimizer moments are torch's ``DTensor``: each rank holds a piece, and placements define how the
pieces form the whole tensor. A checkpoint holds whole tensors, with the names and shapes of the original model. A run
can therefore resume from it under any layout. The main entry point is :class:`ShardedState`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from ddp_trainer.common.parallel_dims import SAME_LAYERS
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh


class ShardedState:
    """Operations on the state of a model that is sharded over the ranks of a mesh."""

    def __init__(self, mesh: Mesh, group: Group) -> None:
        self.mesh = mesh
        self._group = group

    def gather_state(self, state: Any, *, keep: bool) -> Any:
        """Return the state with each sharded tensor as a whole tensor on the CPU.

        Every rank must call it with its part of the same state. Tensors are gathered one at a time.

        Args:
            state: Nested mappings and sequences of tensors and values.
            keep: False on ranks that do not need the result. Sharded tensors become None there.
        """
        with self._group.convert_errors():
            return self._gather_full(state, keep=keep)

    def _gather_full(self, state: Any, *, keep: bool) -> Any:
        if isinstance(state, Mapping):
            return {name: self._gather_full(value, keep=keep) for name, value in state.items()}
        if isinstance(state, tuple | list):
            return [self._gather_full(value, keep=keep) for value in state]
        if not isinstance(state, DTensor):
            return state
        piece_here: DTensor = state.to(self._group.device)  # type: ignore[assignment] # torch declares Tensor
        gathered = piece_here.full_tensor()
        return gathered.cpu() if keep else None

    def check_param_order(self, optimizer: Optimizer, task: Task) -> None:
        """Refuse an optimizer of the task whose numbering of the weights differs between ranks.

        Raises:
            BadTask: The numbering differs.
        """

    def break_off(self) -> None:
        """Reset the model to its form between steps after a step was aborted, without communication."""

    def first_stage_of(self, name: str) -> int:  # noqa: ARG002 - used with pipeline stages
        """Return the first rank of ``pp`` that has the weight of this name."""
        return 0

    @staticmethod
    def cut(full: Tensor, like: Tensor) -> Tensor:
        """Return the piece of this rank of a tensor that every rank has whole.

        Args:
            full: Whole tensor, the same on every rank.
            like: Tensor whose placements apply. If it is not a ``DTensor``, ``full`` is returned unchanged.
        """
        if not isinstance(like, DTensor):
            return full
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load the pieces of this rank from whole weights of the complete model.

        Args:
            model: Model of this rank. It is changed in place.
            weights: Name → whole tensor with the shape of the complete weight, on any device.
        """
        own = model.state_dict()
        model.load_state_dict({name: self.cut(weight, own[name]) for name, weight in weights.items()})

    def optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a whole optimizer state that the optimizer of this rank loads.

        It contains the state of the weights that this rank has, cut as these weights are.

        Args:
            optimizer: Optimizer of this rank.
            state: ``state_dict`` of the optimizer with whole tensors.
        """
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        names = [name for group in state["param_groups"] for name in group["params"]]
        weight_of = dict(zip(names, weights, strict=False))
        own = {name: of for name, of in state["state"].items() if not weight_of[name].is_meta}
        return {**state, "state": {name: self._cut_all(of, weight_of[name]) for name, of in own.items()}}

    def _cut_all(self, state: Mapping[str, Any], weight: Tensor) -> dict[str, Any]:
        return {
            name: self.cut(value, weight) if isinstance(value, Tensor) and value.shape == weight.shape else value
            for name, value in state.items()
        }

    @staticmethod
    def pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the pieces of the tensors on this rank.

        Args:
            tensors: Tensors or DTensors of any shape and dtype.

        Returns:
            Views of the local parts, in the same order.
        """
        return [local_shard(tensor) for tensor in tensors]

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of the whole gradient, a float32 scalar on the device.

        Every rank must call it with its pieces. A piece that several ranks hold is counted once.

        Args:
            gradients: Gradients of this rank, DTensors or plain tensors, of any shape.
        """
        by_holders: dict[int, list[Tensor]] = {}
        for gradient in gradients:
            by_holders.setdefault(self._num_replicas(gradient), []).append(local_shard(gradient))
        squares = torch.zeros((), dtype=torch.float64, device=self._group.device)
        for holders, pieces in by_holders.items():
            squares += nn.utils.get_total_norm(pieces).double().square().to(squares.device) / holders
        return self._group.sum(squares).sqrt().float()

    def _num_replicas(self, tensor: Tensor) -> int:
        """Return the number of ranks of one stage that hold the same piece."""
        ranks = self.mesh.layout.ranks(SAME_LAYERS)
        if not isinstance(tensor, DTensor):
            return ranks
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
            # is_shard() is False for _StridedShard, which torch uses for weights sharded by tp and shard.
            if not placement.is_replicate():
                ranks //= size
        return ranks


def local_shard(tensor: Tensor) -> Tensor:
    """Return the piece of a tensor on this rank; writing to it changes the tensor.

    Args:
        tensor: DTensor or plain tensor of any shape and dtype. A plain tensor is returned unchanged.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def from_local(own: Tensor, like: Tensor) -> Tensor:
    """Return the tensor sharded like ``like`` whose local shard is ``own``; the inverse of :func:`local_shard`.

    Args:
        own: Local part, with the shape of ``like`` on this rank.
        like: DTensor whose mesh, placements and whole shape apply. For a plain tensor, ``own`` is returned unchanged.
    """
    if not isinstance(like, DTensor):
        return own
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
