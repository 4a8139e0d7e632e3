"""Sharded weights of pipeline stages, over the ranks of the dimension ``shard``, which hold the same stages.

A rank keeps a shard of each weight, of its gradient and of its moments. At the start of a step it gathers the weights
of its stages, and all micro-batches use them, forward and backward. At the end of the step gradients are
reduce-scattered and the whole weights are freed, bucket by bucket. :mod:`ddp_trainer.train.parallel.fsdp`
gathers each block in every pass. In a pipeline this would send every weight twice per micro-batch.

Source: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Shard

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.train.distributed.grad_allreduce import ALL_GATHER, REDUCE_SCATTER, buckets
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import from_local, local_shard
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.parallel.pp.stage_transfer import without_memory
from ddp_trainer.train.parallel.tensor_parallel import add_up_along


@dataclass(slots=True)
class _Weight:
    """One sharded weight."""

    piece: nn.Parameter
    """This rank's shard, which the optimizer steps."""
    dimension: int
    """Dimension along which the weight is sharded."""
    form: Tensor
    """The whole weight on the meta device; in a tensor-parallel layer, this rank's slice as a DTensor."""
    places: Sequence[tuple[nn.Module, str]]
    """Modules that hold the weight, and its name in each."""

    @property
    def rows(self) -> int:
        """Size of the sharded dimension on this rank's slice."""
        return local_shard(self.form).shape[self.dimension]

    def put(self, weight: nn.Parameter) -> None:
        """Register ``weight`` in all modules that hold it."""
        for module, name in self.places:
            module.register_parameter(name, weight)


class StageZero:
    """Sharded weights of all stages of this rank."""

    def __init__(self, model: nn.Module, modules: Sequence[nn.Module], mesh: Mesh, group: Group) -> None:
        """Shard the weights in place.

        Args:
            model: The model.
            modules: The stages, which share their weights with the model.
            mesh: The mesh of the ranks.
            group: The group of the ranks.
        """
        self._mesh, self._group = mesh, group
        self._line = mesh.along("shard").get_group()
        self._ranks = mesh.layout.shard
        self._weights: list[_Weight] = []
        self._uncut: list[nn.Parameter] = []
        """Weights too small to be sharded, which each rank holds whole."""
        self._is_gathered = False
        for weight in [parameter for parameter in model.parameters() if not parameter.is_meta]:
            dimension = _longest_unsharded_dim(weight)
            if dimension is None:
                self._uncut.append(weight)
            else:
                self._weights.append(self._cut(weight, dimension, _owning_modules(weight, [model, *modules])))
        self._by_piece = {entry.piece: entry for entry in self._weights}

    def gather(self, waits: CommWaits) -> None:
        """Give the stages their whole weights; every rank of ``shard`` must call it."""
        with self._group.convert_errors(), torch.no_grad():
            for bucket in self._buckets(self._weights):
                own_part = torch.cat(
                    [self._rows(local_shard(entry.piece.detach()), entry, 1).flatten() for entry in bucket]
                )
                every = torch.empty(self._ranks * own_part.numel(), dtype=own_part.dtype, device=own_part.device)
                with waits.during(Wait.ALL_GATHER):
                    ALL_GATHER(every, own_part, group=self._line)
                sizes = [self._padded(entry) for entry in bucket]
                for entry, rows in zip(bucket, torch.split(every.view(self._ranks, -1), sizes, dim=1), strict=True):
                    full = _unpad(rows, entry.form, entry.dimension)
                    entry.put(nn.Parameter(full, requires_grad=entry.piece.requires_grad))
        self._is_gathered = True

    def reshard(self) -> None:
        """Free the whole weights; the model holds its shards again."""
        for entry in self._weights:
            entry.put(entry.piece)
        self._is_gathered = False

    def reduce_scatter_grads(self, waits: CommWaits) -> None:
        """Reduce-scatter the gradients of the whole weights, and free the whole weights and gradients.

        Gradients must have the placement of their weights.
        """
        with torch.no_grad():
            for bucket in self._buckets([entry for entry in self._weights if entry.piece.requires_grad]):
                self._reduce_scatter_bucket(bucket, waits)
        self.reshard()
        if uncut := [weight for weight in self._uncut if weight.requires_grad]:
            add_up_along(uncut, self._mesh, "shard", partial(waits.during, Wait.REDUCE_SCATTER))

    def _reduce_scatter_bucket(self, bucket: Sequence[_Weight], waits: CommWaits) -> None:
        """Reduce-scatter one bucket; its whole weights are freed before the next bucket starts."""
        rows = [
            self._rows(local_shard(_gradient(entry)), entry, self._ranks).reshape(self._ranks, -1) for entry in bucket
        ]
        every = torch.cat(rows, dim=1)
        del rows  # some backends copy the input, so memory peaks here
        own_part = torch.empty(every.shape[1], dtype=every.dtype, device=every.device)
        with waits.during(Wait.REDUCE_SCATTER):
            REDUCE_SCATTER(own_part, every.flatten(), group=self._line)
        for entry, own in zip(bucket, torch.split(own_part, [self._padded(entry) for entry in bucket]), strict=True):
            entry.piece.grad = _unpad(own, entry.piece, entry.dimension)
            entry.put(entry.piece)

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        """Context with whole weights, for a pass without gradients outside of a step."""
        if self._is_gathered:
            yield
            return
        self.gather(CommWaits())
        try:
            yield
        finally:
            self.reshard()

    def _buckets(self, weights: Sequence[_Weight]) -> Iterator[list[_Weight]]:
        for bucket in buckets([parameter.piece for parameter in weights]):
            yield [self._by_piece[entry] for entry in bucket]

    def _cut(self, weight: nn.Parameter, dimension: int, places: Sequence[tuple[nn.Module, str]]) -> _Weight:
        here = local_shard(weight.detach())
        own = torch.split(here, self._each(here.shape[dimension]), dim=dimension)
        number = self._mesh.place.shard
        own_part = own[number].clone() if number < len(own) else here.narrow(dimension, 0, 0).clone()
        names, placements = ["shard"], list[Placement]([Shard(dimension)])
        if isinstance(weight, DTensor):
            names += self._mesh.dimensions(weight.device_mesh)
            placements += weight.placements
        lying = DTensor.from_local(
            own_part, self._mesh.along(*names), placements, run_check=False, shape=weight.shape, stride=weight.stride()
        )
        cut = _Weight(
            nn.Parameter(lying, requires_grad=weight.requires_grad), dimension, without_memory(weight.detach()), places
        )
        cut.put(cut.piece)
        return cut

    def _each(self, rows: int) -> int:
        """Return the rows per rank as DTensor splits them; the last ranks may have fewer or none."""
        return max(1, -(-rows // self._ranks))

    def _padded(self, weight: _Weight) -> int:
        """Return the number of elements of a padded shard, the same on every rank."""
        shape = local_shard(weight.form).shape
        return self._each(weight.rows) * (shape.numel() // shape[weight.dimension])

    def _rows(self, tensor: Tensor, weight: _Weight, ranks: int) -> Tensor:
        """Return the shards of ``ranks`` ranks, with the sharded dimension first, padded with zeros to equal sizes."""
        rows = tensor.movedim(weight.dimension, 0)
        spare = self._each(weight.rows) * ranks - len(rows)
        return torch.cat([rows, rows.new_zeros(spare, *rows.shape[1:])])


def _unpad(padded: Tensor, form: Tensor, dimension: int) -> Tensor:
    """Return padded rows as a tensor of the shape and placement of ``form``."""
    shape = local_shard(form).movedim(dimension, 0).shape
    here = padded.reshape(-1, *shape[1:])[: shape[0]].movedim(0, dimension).contiguous()
    return from_local(here, form)


def _gradient(weight: _Weight) -> Tensor:
    module, name = weight.places[0]
    gradient = module.get_parameter(name).grad
    assert gradient is not None  # noqa: S101 - settled before
    return gradient


def _longest_unsharded_dim(weight: Tensor) -> int | None:
    """Return the longest dimension that tensor parallelism does not cut; None if none has more than one row."""
    cut = (
        {placement.dim for placement in weight.placements if isinstance(placement, Shard)}
        if isinstance(weight, DTensor)
        else set()
    )
    free = [number for number, rows in enumerate(weight.shape) if rows > 1 and number not in cut]
    return max(free, key=lambda number: weight.shape[number], default=None)


def _owning_modules(weight: nn.Parameter, modules: Sequence[nn.Module]) -> list[tuple[nn.Module, str]]:
    found = {
        (id(module), name): (module, name)
        for root in modules
        for module in root.modules()
        for name, own in module.named_parameters(recurse=False, remove_duplicate=False)
        if own is weight
    }
    return list(found.values())
