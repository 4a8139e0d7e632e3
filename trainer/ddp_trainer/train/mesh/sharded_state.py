"""A model whose weights no rank holds whole: how its state is gathered and given out, and what its gradients come to.

Weights, gradients and moments are torch's ``DTensor``: a piece on each rank, and the rule by which the pieces make a
whole. What a checkpoint holds is the whole, in the names and shapes of the model as it was written, so that a run goes
on from it under any other layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from ddp_trainer.train.data.task import Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.grad_norm import total_norm


class ShardedState:
    """What is asked of a spread model besides computing."""

    def __init__(self, mesh: Mesh, group: Group) -> None:
        self.mesh = mesh
        self._group = group

    def whole(self, state: Any, *, keep: bool) -> Any:
        """The state with every tensor whole, on the CPU; every rank must call it with its part of the same state.

        Ranks that do not ``keep`` it get nothing of it: each tensor is gathered by itself, and dropped there.
        """
        with self._group.watched():
            return self._gathered(state, keep=keep)

    def _gathered(self, state: Any, *, keep: bool) -> Any:
        if isinstance(state, Mapping):
            return {name: self._gathered(value, keep=keep) for name, value in state.items()}
        if isinstance(state, tuple | list):
            return [self._gathered(value, keep=keep) for value in state]
        if not isinstance(state, DTensor):
            return state
        piece_here: DTensor = state.to(self._group.device)  # type: ignore[assignment] # as torch types it
        gathered = piece_here.full_tensor()
        return gathered.cpu() if keep else None

    def demand_same(self, optimizer: Optimizer, task: Task) -> None:
        """Refuse an optimizer of the task's that numbers weights in another way than other ranks' do.

        Raises:
            BadTask: it does.
        """

    def break_off(self) -> None:
        """Leave the model as it is between steps, though one was begun and will not end; no rank is asked."""

    def first_stage_of(self, name: str) -> int:  # noqa: ARG002 - where there are stages
        """The first rank of ``pp`` that has the weight of this name."""
        return 0

    def cut(self, whole: Tensor, like: Tensor) -> Tensor:
        """This rank's piece of a tensor that every rank has whole; as it is where ``like`` is no piece either."""
        if not isinstance(like, DTensor):
            return whole
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Give the model its pieces of whole weights, of which it has every one."""
        own = model.state_dict()
        model.load_state_dict({name: self.cut(weight, own[name]) for name, weight in weights.items()})

    def optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """The whole state of an optimizer, as this rank's takes it: of weights that are here, and cut as these are."""
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
        """What of them lies on this rank."""
        return [piece(tensor) for tensor in tensors]

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Norm of the whole gradient, a scalar on the device; every rank must call it with its pieces.

        Each piece is counted once, though several ranks may hold it.
        """
        by_holders: dict[int, list[Tensor]] = {}
        for gradient in gradients:
            by_holders.setdefault(self._holders(gradient), []).append(piece(gradient))
        squares = torch.zeros((), dtype=torch.float64, device=self._group.device)
        for holders, pieces in by_holders.items():
            squares += total_norm(pieces).double().square().to(squares.device) / holders
        return self._group.sum(squares).sqrt().float()

    def _holders(self, tensor: Tensor) -> int:
        """Ranks of one stage that hold the same piece."""
        layout = self.mesh.layout
        ranks = layout.replicate * layout.shard * layout.tp
        if not isinstance(tensor, DTensor):
            return ranks
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
            # torch's shards of slices do not call themselves shards.
            if not placement.is_replicate():
                ranks //= size
        return ranks


def piece(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank; in place, where it is written to."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def state_bytes(*tensors: Tensor) -> int:
    """Bytes that the tensors take on this rank."""
    return sum(each.numel() * each.element_size() for each in map(piece, tensors))
