"""The ranks of a group on the grid of a layout, and who speaks with whom along each of its dimensions.

Imports ``torch.distributed.tensor``'s part of torch, so it is imported where there is such a grid alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.layout import DIMENSIONS, Layout, Place
from ddp_trainer.train.group import Group


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's view of the grid."""

    layout: Layout
    place: Place
    devices: DeviceMesh
    """Of the dimensions that have several ranks, from the outermost to the innermost, under their own names."""

    @classmethod
    def of(cls, layout: Layout, group: Group, timeout_seconds: float) -> Mesh:
        """Put the group's ranks on the grid; every rank must call it. The layout has as many ranks, and several.

        torch's own ``init_device_mesh`` would give the groups of a dimension torch's own timeout, half an hour on gloo.
        """
        names = tuple(name for name in DIMENSIONS if getattr(layout, name) > 1)
        grid = torch.arange(layout.world).view([getattr(layout, name) for name in names])
        kind = group.device.type
        with group.watched():
            if grid.dim() == 1:
                whole = dist.group.WORLD
                assert whole is not None  # noqa: S101 - a group of several ranks has been met
                devices = DeviceMesh.from_group(whole, kind, mesh_dim_names=names)
            else:
                groups = [_own_group(grid, dimension, group.rank, timeout_seconds) for dimension in range(grid.dim())]
                devices = DeviceMesh.from_group(groups, kind, mesh=grid, mesh_dim_names=names)
        return cls(layout, layout.place(group.rank), devices)

    def along(self, *names: str) -> DeviceMesh:
        """The ranks that differ from this one in these dimensions alone, of which one must have several ranks.

        Dimensions of one rank are left out.
        """
        assert self.devices.mesh_dim_names is not None  # noqa: S101 - they were named above
        return self.devices[tuple(name for name in self.devices.mesh_dim_names if name in names)]


def _own_group(grid: torch.Tensor, dimension: int, rank: int, timeout_seconds: float) -> dist.ProcessGroup:
    """The group of this rank along a dimension. All ranks make all groups, in one order, as torch demands."""
    own = None
    for ranks in _lines(grid, dimension):
        made = dist.new_group(ranks, timeout=timedelta(seconds=timeout_seconds))
        own = made if rank in ranks else own
    assert isinstance(own, dist.ProcessGroup)  # noqa: S101 - every rank stands on one line along each dimension
    return own


def _lines(grid: torch.Tensor, dimension: int) -> Iterator[list[int]]:
    """Ranks that differ in one coordinate.

    >>> list(_lines(torch.arange(4).view(2, 2), 0))
    [[0, 2], [1, 3]]
    """
    yield from grid.movedim(dimension, -1).reshape(-1, grid.shape[dimension]).tolist()
