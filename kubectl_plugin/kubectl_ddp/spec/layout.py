"""What must hold between a job's layout, its nodes and processes, and the model that it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from ddp_trainer.common.parallel_dims import DIMENSIONS, Layout, LayoutError, LayoutRange
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.engine import Gang
from kubectl_ddp.spec.node_requirements import Placement, Topology, is_lower_level
from kubectl_ddp.spec.quantity import BadValue, Nodes
from kubectl_ddp.spec.reference_model import last_flag_value, reference_model, runs_the_trainer
from kubectl_ddp.spec.spec_warning import SpecWarning
from kubectl_ddp.spec.trainer_options import option_value, option_violations

if TYPE_CHECKING:
    from kubectl_ddp.spec.model import JobSpec

MOST_LOOKED_AT: Final = 64
"""Numbers of nodes between the least and the most that are looked at, from above: so a job comes to them."""


AUTO: Final = "auto"
"""A plan chooses the layout, when all else is known about the job."""


def parse_layouts(text: str) -> LayoutRange | str:
    """Read ``replicate=2,shard=4,tp=2,pp=2``, sizes as N or MIN:MAX; or ``auto``. Raises BadValue."""
    if text == AUTO:
        return AUTO
    try:
        return LayoutRange.parse(text)
    except LayoutError as error:
        raise BadValue(str(error)) from None


def validate_single_layout(spec: JobSpec) -> None:
    """The reference trainer obeys a layout among its own arguments, and pods are placed by the job's."""
    own = last_flag_value(spec.args, "--parallel") if runs_the_trainer(spec.program) else None
    if own is None:
        return
    try:
        theirs = LayoutRange.parse(own)
    except LayoutError as error:
        raise UsageError(f"--parallel of the program: {error}.") from None
    if spec.parallel not in {None, theirs}:
        raise UsageError(
            f"The job has --parallel {spec.parallel}, and its program --parallel {theirs}.", hint="Keep one."
        )


def the_layout_changes_with_the_nodes(spec: JobSpec) -> None:
    """A number of nodes that changes needs a layout that does."""
    if spec.parallel is not None and spec.nnodes.is_elastic and (fixed := spec.parallel.fixed) is not None:
        raise UsageError(
            f"nnodes {spec.nnodes} lets the number of ranks change, and parallel '{fixed}' always takes {fixed.world}.",
            hint="Let a dimension change with it, as in replicate=1:4, or fix nnodes.",
        )


def the_layout_takes_all_ranks(spec: JobSpec) -> None:
    """The product of the sizes is that of nodes and processes, when all nodes are there and when the fewest are."""
    if spec.parallel is None:
        return
    for nodes in dict.fromkeys((spec.nnodes.maximum, spec.nnodes.minimum)):
        world = nodes * spec.nproc
        if spare_ranks(spec.parallel, world):
            raise UsageError(
                f"parallel '{spec.parallel}' has no layout of {_count(world, 'rank')}, which "
                f"{_count(nodes, 'node')} of {_count(spec.nproc, 'process', 'processes')} make.",
                hint="Change one of them: the product of the sizes is that of nnodes and nproc.",
            )


def validate_tp_within_pod(spec: JobSpec) -> None:
    """Ranks of ``tp`` speak in every layer, forth and back; between pods that is slower than the work it spares."""
    for name in (each.name for each in DIMENSIONS if each.is_used_in_layers):
        least, most = spec.parallel.size_ranges[name] if spec.parallel is not None else (1, 1)
        beyond = max(least, spec.nproc + 1)  # no larger one divides it either
        for size in range(least, min(most, beyond) + 1):
            if spec.nproc % size:
                processes = _count(spec.nproc, "process", "processes")
                raise UsageError(
                    f"parallel '{spec.parallel}' allows {name}={size}, and a node has {processes}: "
                    "slices of a tensor stay in a pod.",
                    hint=f"Give a {name} that divides nproc, or change nproc.",
                )


def the_model_fits_the_layout(spec: JobSpec) -> None:
    """The reference trainer's GPT can be cut so, however many nodes there are; models of others are unknown.

    The trainer refuses for good: a job that loses the wrong number of nodes would not come back.
    """
    model = reference_model(spec.program, spec.args)
    if spec.parallel is None or model is None:
        return
    for nodes, layout in layouts_by_nodes(spec.parallel, spec.nnodes, spec.nproc).items():
        for misfit in model.layout_violations(layout, spec.largest_world):
            if not spec.nnodes.is_elastic:
                raise UsageError(misfit.message, hint=misfit.help)
            raise UsageError(
                f"With {nodes} of nnodes {spec.nnodes}, {misfit.message[0].lower()}{misfit.message[1:]}",
                hint=f"{misfit.help} Or narrow nnodes, or the sizes of the layout.",
            )


def the_options_fit_the_layout(spec: JobSpec) -> None:
    """The reference trainer takes its options in such a layout; those of other programs are their own."""
    is_its_own = spec.parallel is None and last_flag_value(spec.args, "--parallel") is not None
    if not runs_the_trainer(spec.program) or is_its_own:
        return
    for misfit in option_violations(spec.parallel, partial(option_value, spec.args)):
        raise UsageError(misfit.message, hint=misfit.help)


def validate_replica_topology(spec: JobSpec) -> None:
    """Kueue alone keeps some of a job's pods together, and by their number; the first of them begin with the first."""
    wishes = [wish for wish in spec.topology if wish.placement is Placement.REPLICA]
    if not wishes:
        return
    if len(wishes) > 1:
        raise UsageError(
            f"A replica is kept in one domain, and the topology names {wishes[0].key} and {wishes[1].key}.",
            hint="Keep one of them.",
        )
    if spec.gang is not Gang.KUEUE:
        raise UsageError(
            f"The topology '{wishes[0]}' keeps the pods of a replica together, which Kueue alone does, and the gang is "
            f"'{spec.gang}'.",
            hint="Add --gang kueue and --queue NAME, or use pack, which is for the whole job.",
        )
    if spec.parallel is None:
        raise UsageError(
            f"The topology '{wishes[0]}' keeps the pods of a replica together, and nothing says what a replica is.",
            hint="Add --parallel.",
        )
    pack = next((wish for wish in spec.topology if wish.placement is Placement.PACK), None)
    if pack is not None and is_lower_level(pack.key, wishes[0].key):
        raise UsageError(
            f"The topology packs the whole job by {pack.key}, which is narrower than {wishes[0].key}, where it keeps "
            "each replica, and Kueue admits no such job.",
            hint="Pack by a wider level, or leave pack out.",
        )
    _validate_pods_per_replica(spec, spec.parallel, wishes[0])


def _validate_pods_per_replica(spec: JobSpec, allowed: LayoutRange, wish: Topology) -> None:
    """At any number of nodes, and of as many."""
    replica = layout_of(spec).replica
    if replica % spec.nproc:
        raise UsageError(
            f"The topology '{wish}' keeps the pods of a replica together, and a replica of parallel "
            f"'{allowed}' is {_count(replica, 'rank')} where a pod has {spec.nproc}.",
            hint="Use an nproc that divides a replica.",
        )
    by_nodes = layouts_by_nodes(allowed, spec.nnodes, spec.nproc)
    for nodes, other in ((nodes, layout.replica) for nodes, layout in by_nodes.items() if layout.replica != replica):
        raise UsageError(
            f"The topology '{wish}' keeps the pods of a replica together, and a replica of parallel "
            f"'{allowed}' is {_count(other, 'rank')} with {_count(nodes, 'node')} and {replica} "
            f"with {spec.nnodes.maximum}.",
            hint="Let only replicate change.",
        )


def pods_of_a_replica(spec: JobSpec) -> int:
    """How many pods hold one copy of the model, when all nodes are there."""
    return layout_of(spec).replica // spec.nproc


def layout_of(spec: JobSpec) -> Layout:
    """The layout when all nodes are there; without one, every rank is a replica."""
    world = spec.largest_world
    return spec.parallel.choose(world) if spec.parallel is not None else Layout(replicate=world)


@lru_cache(maxsize=4)
def layouts_by_nodes(allowed: LayoutRange, nnodes: Nodes, nproc: int) -> Mapping[int, Layout]:
    """The layouts for the most nodes, for those that are reached first as nodes are lost, and for the fewest.

    Raises LayoutError where the fewest have too few ranks, which :func:`the_layout_takes_all_ranks` refuses before.
    """
    between = range(nnodes.maximum - 1, nnodes.minimum, -1)[:MOST_LOOKED_AT]
    return {nodes: allowed.choose(nodes * nproc) for nodes in (nnodes.maximum, *between, nnodes.minimum)}


def replicas_over_pods(spec: JobSpec) -> Iterator[SpecWarning]:
    """Replicas that end within a pod: losing that pod, the job loses two of them."""
    if spec.parallel is None:
        return
    replica = layout_of(spec).replica
    if spec.nnodes.maximum > 1 and replica % spec.nproc and spec.nproc % replica:
        yield SpecWarning(
            f"A replica of parallel '{spec.parallel}' is {replica} ranks, and a pod has {spec.nproc}: some pods have "
            "parts of two replicas, and losing one of them loses both.",
            "Use an nproc that divides a replica, or that replicas divide.",
        )


def ranks_to_spare(spec: JobSpec) -> Iterator[SpecWarning]:
    """Numbers of nodes between the least and the most at which not every rank has a place."""
    if spec.parallel is None:
        return
    for nodes, layout in layouts_by_nodes(spec.parallel, spec.nnodes, spec.nproc).items():
        if spare := nodes * spec.nproc - layout.world:
            ranks = _count(spare, "rank")
            yield SpecWarning(
                f"With {nodes} of nnodes {spec.nnodes}, {ranks} of parallel '{spec.parallel}' would have no place."
            )
            return


def spare_ranks(allowed: LayoutRange, world: int) -> int:
    """Of so many ranks, those without a place; all of them where no layout is small enough."""
    try:
        return world - allowed.choose(world).world
    except LayoutError:
        return world


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
