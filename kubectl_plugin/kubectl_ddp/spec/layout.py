"""Rules between a job's layout, its nodes and processes, and the trained model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Final

from ddp_trainer.common.parallel_dims import DIMENSIONS, Layout, LayoutError, LayoutRange
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.trainer_arguments import (
    last_flag_value,
    option_value,
    option_violations,
    reference_model,
    runs_the_trainer,
)
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.pod import Placement, Topology, is_lower_level
from kubectl_ddp.values.program import Gang
from kubectl_ddp.values.quantity import NodeRange

MAX_NODE_COUNTS: Final = 64
"""Maximum number of node counts to check between maximum and minimum, starting at the maximum."""


def validate_single_layout(spec: JobSpec) -> None:
    """Check that trainer and job do not set different layouts; the job's layout determines the placement."""
    own = last_flag_value(spec.args, "--parallel") if runs_the_trainer(spec.program) else None
    if own is None:
        return
    try:
        layout = LayoutRange.parse(own)
    except LayoutError as error:
        raise UsageError(f"--parallel of the program: {error}.") from None
    if spec.parallel not in {None, layout}:
        raise UsageError(
            f"The job has --parallel {spec.parallel}, and its program --parallel {layout}.", hint="Keep one."
        )


def the_layout_changes_with_the_nodes(spec: JobSpec) -> None:
    """Check that the layout of an elastic job can change with the number of nodes."""
    if spec.parallel is not None and spec.nnodes.is_elastic and (fixed := spec.parallel.fixed) is not None:
        raise UsageError(
            f"nnodes {spec.nnodes} lets the number of ranks change, and parallel '{fixed}' always takes {fixed.world}.",
            hint="Let a dimension change with it, as in replicate=1:4, or fix nnodes.",
        )


def the_layout_takes_all_ranks(spec: JobSpec) -> None:
    """Check that the product of the sizes equals nodes times processes, at the maximum and the minimum of nodes."""
    if spec.parallel is None:
        return
    for nodes in dict.fromkeys((spec.nnodes.maximum, spec.nnodes.minimum)):
        world = nodes * spec.nproc
        if spare_ranks(spec.parallel, world):
            raise UsageError(
                f"parallel '{spec.parallel}' has no layout of {pluralize(world, 'rank')}, which "
                f"{pluralize(nodes, 'node')} of {pluralize(spec.nproc, 'process', 'processes')} make.",
                hint="Change one of them: the product of the sizes is that of nnodes and nproc.",
            )


def validate_layer_groups_within_pod(spec: JobSpec) -> None:
    """Check that ranks that communicate in every layer share a pod, because this is too slow between pods."""
    if spec.parallel is None:
        return
    names = [dimension.name for dimension in DIMENSIONS if dimension.is_used_in_layers]
    ranges = (spec.parallel.size_ranges[name] for name in names)
    # No size above nproc divides it, so the first one is enough.
    allowed = (range(least, min(most, max(least, spec.nproc + 1)) + 1) for least, most in ranges)
    for sizes in product(*allowed):
        if spec.nproc % prod(sizes):
            used = {name: size for name, size in zip(names, sizes, strict=True) if size > 1}
            what = f"a {next(iter(used))} that" if len(used) == 1 else f"{' and '.join(used)} whose product"
            raise UsageError(
                f"parallel '{spec.parallel}' allows {' with '.join(f'{name}={size}' for name, size in used.items())}, "
                f"and a node has {pluralize(spec.nproc, 'process', 'processes')}: slices of a tensor stay in a pod.",
                hint=f"Give {what} divides nproc, or change nproc.",
            )


def the_model_fits_the_layout(spec: JobSpec) -> None:
    """Check that the trainer's GPT supports the layout at every number of nodes; other models are unknown.

    The trainer's refusal is permanent: a job that loses the wrong number of nodes would not recover.
    """
    model = reference_model(spec.program, spec.args)
    if spec.parallel is None or model is None:
        return
    for nodes, layout in layouts_by_nodes(spec.parallel, spec.nnodes, spec.nproc).items():
        for violation in model.layout_violations(layout, spec.largest_world):
            if not spec.nnodes.is_elastic:
                raise UsageError(violation.message, hint=violation.help)
            raise UsageError(
                f"With {nodes} of nnodes {spec.nnodes}, {violation.message[0].lower()}{violation.message[1:]}",
                hint=f"{violation.help} Or narrow nnodes, or the sizes of the layout.",
            )


def the_options_fit_the_layout(spec: JobSpec) -> None:
    """Check that the trainer's options work with the layout; options of other programs are unknown."""
    is_its_own = spec.parallel is None and last_flag_value(spec.args, "--parallel") is not None
    if not runs_the_trainer(spec.program) or is_its_own:
        return
    for violation in option_violations(spec.parallel, partial(option_value, spec.args)):
        raise UsageError(violation.message, hint=violation.help)


def validate_replica_topology(spec: JobSpec) -> None:
    """Check that replicas can be placed together: only Kueue supports it, for groups of a fixed number of pods."""
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
    if spec.spares:
        raise UsageError(
            f"The topology '{wishes[0]}' keeps the pods of a replica together, and {pluralize(spec.spares, 'spare')} "
            "would take a place in another domain.",
            hint="Leave spares out, or use pack, which is for the whole job.",
        )
    if spec.parallel is None:
        raise UsageError(
            f"The topology '{wishes[0]}' keeps the pods of a replica together, and the job has no replicas.",
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
    """Check that a replica consists of whole pods, with the same number at every number of nodes."""
    replica = layout_of(spec).replica
    if replica % spec.nproc:
        raise UsageError(
            f"The topology '{wish}' keeps the pods of a replica together, and a replica of parallel "
            f"'{allowed}' is {pluralize(replica, 'rank')} where a pod has {spec.nproc}.",
            hint="Use an nproc that divides a replica.",
        )
    by_nodes = layouts_by_nodes(allowed, spec.nnodes, spec.nproc)
    for nodes, other in ((nodes, layout.replica) for nodes, layout in by_nodes.items() if layout.replica != replica):
        raise UsageError(
            f"The topology '{wish}' keeps the pods of a replica together, and a replica of parallel "
            f"'{allowed}' is {pluralize(other, 'rank')} with {pluralize(nodes, 'node')} and {replica} "
            f"with {spec.nnodes.maximum}.",
            hint="Let only replicate change.",
        )


def pods_of_a_replica(spec: JobSpec) -> int:
    """Return the number of pods per copy of the model, at the maximum of nodes."""
    return layout_of(spec).replica // spec.nproc


def layout_of(spec: JobSpec) -> Layout:
    """Return the layout at the maximum of nodes; without a layout, every rank is a replica."""
    world = spec.largest_world
    return spec.parallel.choose(world) if spec.parallel is not None else Layout(replicate=world)


@lru_cache(maxsize=4)
def layouts_by_nodes(allowed: LayoutRange, nnodes: NodeRange, nproc: int) -> Mapping[int, Layout]:
    """Return the layouts at the maximum of nodes, after the first losses of nodes, and at the minimum.

    Raises:
        LayoutError: If the minimum has too few ranks; :func:`the_layout_takes_all_ranks` rejects this earlier.
    """
    between = range(nnodes.maximum - 1, nnodes.minimum, -1)[:MAX_NODE_COUNTS]
    return {nodes: allowed.choose(nodes * nproc) for nodes in (nnodes.maximum, *between, nnodes.minimum)}


def replicas_over_pods(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning if replicas end within a pod, since the loss of this pod breaks two of them."""
    if spec.parallel is None:
        return
    replica = layout_of(spec).replica
    if spec.nnodes.maximum > 1 and replica % spec.nproc and spec.nproc % replica:
        yield warning(
            f"A replica of parallel '{spec.parallel}' is {replica} ranks, and a pod has {spec.nproc}: some pods have "
            "parts of two replicas, and losing one of them loses both.",
            "Use an nproc that divides a replica, or that replicas divide.",
        )


def ranks_to_spare(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for the first number of nodes at which some ranks are not part of the layout."""
    if spec.parallel is None:
        return
    for nodes, layout in layouts_by_nodes(spec.parallel, spec.nnodes, spec.nproc).items():
        if spare := nodes * spec.nproc - layout.world:
            ranks = pluralize(spare, "rank")
            yield warning(
                f"With {nodes} of nnodes {spec.nnodes}, {ranks} of parallel '{spec.parallel}' would have no place."
            )
            return


def spare_ranks(allowed: LayoutRange, world: int) -> int:
    """Return the number of ranks that are not part of the layout; all if no layout is small enough."""
    try:
        return world - allowed.choose(world).world
    except LayoutError:
        return world
