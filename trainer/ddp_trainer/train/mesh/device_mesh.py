"""The ranks of a group on the grid of a layout, and who speaks with whom along each of its dimensions.

Imports ``torch.distributed.tensor``'s part of torch, so it is imported where there is such a grid alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random as random

from ddp_trainer.common.parallel_dims import DIMENSIONS, Layout, Place
from ddp_trainer.train.distributed import abortable_gloo
from ddp_trainer.train.distributed.group import Group

_meshes: Final = count(1)
"""Of this process."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's view of the grid."""

    layout: Layout
    place: Place
    devices: DeviceMesh
    """Of the dimensions that have several ranks, from the outermost to the innermost."""
    names: Mapping[str, str]
    """What each of these is called in :attr:`devices`, in the same order."""

    @classmethod
    def of(cls, layout: Layout, group: Group, timeout_seconds: float) -> Mesh:
        """Put the group's ranks on the grid; every rank must call it. The layout has as many ranks, and several.

        torch's own ``init_device_mesh`` would give the groups of a dimension torch's own timeout, half an hour on gloo.

        torch remembers, for as long as a process lives, what it has planned on a mesh, and finds it again for another
        mesh of the same ranks and names, together with the groups of the first. A process that outlives its group would
        wait for ranks of that one; so no two of its meshes have names in common.
        """
        number = next(_meshes)
        names = {name: f"{name}-{number}" for name in DIMENSIONS if getattr(layout, name) > 1}
        grid = torch.arange(layout.world).view([getattr(layout, name) for name in names])
        kind = group.device.type
        with group.watched():
            if grid.dim() == 1 and not any(_speaks_often(name, group) for name in names):
                whole = dist.group.WORLD
                assert whole is not None  # noqa: S101 - a group of several ranks has been met
                devices = DeviceMesh.from_group(whole, kind, mesh_dim_names=tuple(names.values()))
            else:
                timeout = timedelta(seconds=timeout_seconds)
                groups = [_own_group(grid, number, name, group, timeout) for number, name in enumerate(names)]
                devices = DeviceMesh.from_group(groups, kind, mesh=grid, mesh_dim_names=tuple(names.values()))
        return cls(layout, layout.place(group.rank), devices, names)

    def along(self, *names: str) -> DeviceMesh:
        """The ranks that differ from this one in these dimensions alone, of which one must have several ranks.

        Dimensions of one rank are left out.
        """
        return self.devices[tuple(called for name, called in self.names.items() if name in names)]

    def let_go(self) -> None:
        """Of the groups, which are over: with their last reference go their threads and connections.

        torch has no word for it, and holds the mesh itself in what it remembers of it. What draws random numbers for
        slices on a GPU goes, too: it asks all ranks when it begins, and one that is new has to begin with the others.
        """
        held: dict[Any, dist.ProcessGroup] = getattr(self.devices, "_pg_registry", {})
        for each in held.values():
            if isinstance(each, abortable_gloo.AbortableGloo):
                each.let_go()
        held.clear()
        random._rng_tracker = None  # noqa: SLF001 - as above

    def dimensions(self, devices: DeviceMesh) -> tuple[str, ...]:
        """Those of the layout that a part of :attr:`devices` has, in its order."""
        of = {called: name for name, called in self.names.items()}
        assert devices.mesh_dim_names is not None  # noqa: S101 - they were named above
        return tuple(of[called] for called in devices.mesh_dim_names)


def _own_group(grid: torch.Tensor, number: int, name: str, group: Group, timeout: timedelta) -> dist.ProcessGroup:
    """The group of this rank along a dimension. All ranks make all groups, in one order, as torch demands."""
    own = None
    for ranks in _lines(grid, number):
        made = _made(name, ranks, group, timeout)
        own = made if group.rank in ranks else own
    assert isinstance(own, dist.ProcessGroup)  # noqa: S101 - every rank stands on one line along each dimension
    return own


def _made(name: str, ranks: list[int], group: Group, timeout: timedelta) -> Any:
    if _speaks_often(name, group):
        return abortable_gloo.new_group(ranks, timeout, lambda: group.is_broken)
    return dist.new_group(ranks, timeout=timeout)


def _speaks_often(name: str, group: Group) -> bool:
    """Hundreds of times a step: some of it is under way whenever a rank is lost."""
    return name == "tp" and group.backend == "gloo"


def _lines(grid: torch.Tensor, dimension: int) -> Iterator[list[int]]:
    """Ranks that differ in one coordinate.

    >>> list(_lines(torch.arange(4).view(2, 2), 0))
    [[0, 2], [1, 3]]
    """
    yield from grid.movedim(dimension, -1).reshape(-1, grid.shape[dimension]).tolist()
