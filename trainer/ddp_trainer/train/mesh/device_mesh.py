"""Mesh of the ranks of a group: their places in a layout, and a process group for each of its dimensions.

:meth:`Mesh.of` creates it. Imports ``torch.distributed.tensor``, so only runs with such a layout import this module.

Random draws inside of a tensor-parallel model are equal for replicated tensors, and different for different parts. All
ranks of a tensor-parallel group enter the same random stream. :func:`shared_rng` changes dropout layers for
``DTensor`` inputs, sharded or not: every rank draws the mask of the whole tensor and uses its part. The mask is that of
one process for any ``tp``. A dropout layer treats a plain tensor as whole. A module with different plain tensors on
each rank, such as attention over a part of the heads, must use :class:`PerRankRng`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor import _random as random
from torch.distributed.tensor.parallel import ParallelStyle

from ddp_trainer.common.parallel_dims import DIMENSIONS, Layout, MeshDimension, Place
from ddp_trainer.train.data.keyed_rng import mix
from ddp_trainer.train.distributed import abortable_gloo
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig

_meshes: Final = count(1)
"""Numbers for the meshes of this process."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh of the ranks of one group, with the place of this rank."""

    layout: Layout
    place: Place
    devices: DeviceMesh
    """torch's mesh, with the dimensions of several ranks, from the outermost to the innermost."""
    names: Mapping[str, str]
    """Names of these dimensions in :attr:`devices`, by their names in the layout, in the same order."""

    @classmethod
    def of(cls, layout: Layout, group: Group, timeout_seconds: float) -> Mesh:
        """Create the mesh of a group; every rank must call it.

        torch's ``init_device_mesh`` is not used: the groups of its dimensions have torch's default timeout, which is
        half an hour on gloo.

        The names of the dimensions are unique in a process. torch caches plans by the ranks and names of a mesh,
        together with its process groups. A surviving process with the same names would wait for ranks of its old group.

        Args:
            layout: Layout of several ranks, with as many as the group has.
            group: Process group.
            timeout_seconds: Timeout of the groups of the dimensions, in seconds.
        """
        number = next(_meshes)
        used = [dimension for dimension in DIMENSIONS if getattr(layout, dimension.name) > 1]
        names = {dimension.name: f"{dimension.name}-{number}" for dimension in used}
        grid = torch.arange(layout.world).view([getattr(layout, name) for name in names])
        kind = group.device.type
        with group.convert_errors():
            if grid.dim() == 1 and not any(_needs_abort(dimension, group) for dimension in used):
                default = dist.group.WORLD
                assert default is not None  # noqa: S101 - a group of several ranks is initialized
                devices = DeviceMesh.from_group(default, kind, mesh_dim_names=tuple(names.values()))
            else:
                timeout = timedelta(seconds=timeout_seconds)
                groups = [
                    _create_dim_group(grid, number, dimension, group, timeout) for number, dimension in enumerate(used)
                ]
                devices = DeviceMesh.from_group(groups, kind, mesh=grid, mesh_dim_names=tuple(names.values()))
        return cls(layout, layout.place(group.rank), devices, names)

    def along(self, *names: str) -> DeviceMesh:
        """Return the mesh of the ranks that differ from this rank only in these dimensions.

        At least one of the dimensions must have several ranks. Dimensions of one rank are left out.
        """
        return self.devices[tuple(called for name, called in self.names.items() if name in names)]

    def release_groups(self) -> None:
        """Release the process groups after they have ended; their threads and connections end with the last reference.

        torch has no function for this, and its caches hold the mesh. torch's random generator for tensor parallelism on
        a GPU is released as well. It communicates with all ranks when it starts, so new and surviving ranks must start
        it together.
        """
        held: dict[Any, dist.ProcessGroup] = getattr(self.devices, "_pg_registry", {})
        for item in held.values():
            if isinstance(item, abortable_gloo.AbortableGloo):
                item.release_pending_work()
        held.clear()
        random._rng_tracker = None  # noqa: SLF001 - as above

    def dimensions(self, devices: DeviceMesh) -> tuple[str, ...]:
        """Return the names in the layout of the dimensions of a part of :attr:`devices`, in its order."""
        of = {called: name for name, called in self.names.items()}
        assert devices.mesh_dim_names is not None  # noqa: S101 - they were named above
        return tuple(of[called] for called in devices.mesh_dim_names)


def _create_dim_group(
    grid: torch.Tensor, number: int, dimension: MeshDimension, group: Group, timeout: timedelta
) -> dist.ProcessGroup:
    """Return the group of this rank along a dimension. torch requires that all ranks create all groups in order."""
    own = None
    for ranks in _lines(grid, number):
        if _needs_abort(dimension, group):
            made = abortable_gloo.new_group(ranks, timeout, lambda: group.is_broken)
        else:
            made = dist.new_group(ranks, timeout=timeout)
        own = made if group.rank in ranks else own
    assert isinstance(own, dist.ProcessGroup)  # noqa: S101 - every rank is in one line along each dimension
    return own


def _needs_abort(dimension: MeshDimension, group: Group) -> bool:
    """Return True if the group needs abortable gloo.

    The group of ``pp`` stays plain gloo: most of its messages are point-to-point, whose waits cannot be polled.
    """
    return group.backend == "gloo" and not dimension.splits_layers


def _lines(grid: torch.Tensor, dimension: int) -> Iterator[list[int]]:
    """Yield the lists of ranks that differ only in one coordinate.

    >>> list(_lines(torch.arange(4).view(2, 2), 0))
    [[0, 2], [1, 3]]
    """
    yield from grid.movedim(dimension, -1).reshape(-1, grid.shape[dimension]).tolist()


_ADDS: Final = (nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Dropout layers that do more than multiply by a mask."""
_DROPS: Final[tuple[type[nn.Module], ...]] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *_ADDS)
_SEEDS: Final = 1 << 62


class PerRankRng(ParallelStyle):
    """Parallel style of a module that draws different random numbers on each rank in training.

    The common stream continues after the module.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank, forward = device_mesh.get_local_rank(), module.forward

        def run(*args: Any, **options: Any) -> Any:
            if not module.training:
                return forward(*args, **options)
            with _fork_rank_rng(rank):
                return forward(*args, **options)

        module.forward = run
        return module


@contextmanager
def _fork_rank_rng(rank: int) -> Iterator[None]:
    """Use a stream that is seeded with the next number of the common stream and this rank."""
    key = mix(int(torch.randint(_SEEDS, ())), rank)
    on_gpu = torch.cuda.is_available()
    with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
        torch.default_generator.manual_seed(key)
        if on_gpu:
            torch.cuda.manual_seed(key)
        yield


def shared_rng(model: nn.Module, what: str) -> None:
    """Make dropout layers draw the mask of the whole tensor for sharded inputs. Changes the model in place.

    Args:
        model: Tensor-parallel model.
        what: Part of ``--parallel`` that requires it, for the error message.

    Raises:
        BadConfig: The model has a kind of dropout that cannot be sharded.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _DROPS) or not module.p:
            continue
        if isinstance(module, _ADDS):
            raise BadConfig(
                f"--parallel has {what}, and {name} of the model is {type(module).__name__}, which ranks cannot share.",
                hint="Use nn.Dropout in the model instead.",
            )
        module.forward = _with_full_mask(module, module.forward)


def _with_full_mask(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(inputs: Tensor) -> Tensor:
        if not module.training or not isinstance(inputs, DTensor):
            return forward(inputs)
        # Draw the mask with the kernel that a single process uses, so that both masks are equal.
        mask = forward(torch.ones(inputs.shape, dtype=inputs.dtype, device=inputs.device))
        placements = [Replicate() if isinstance(placement, Partial) else placement for placement in inputs.placements]
        return inputs * distribute_tensor(mask, inputs.device_mesh, placements, src_data_rank=None)

    return run
