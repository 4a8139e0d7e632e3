"""Implementation of ``capacity``: reads a place, counts free capacity and the jobs that fit, and prints them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.capacity.largest_job import largest_jobs
from kubectl_ddp.capacity.model import GPU, Gang, Inventory, Queue, type_of
from kubectl_ddp.capacity.node_capacity import node_capacities
from kubectl_ddp.capacity.queues import queues_of
from kubectl_ddp.capacity.report import Capacity, capacity_to_dict, largest_job_message, tables
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Forbidden, NotFound
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.nodes import Machine, parse_nodes, scheduled_pods
from kubectl_ddp.preflight.pod_requirements import PodRequirements, pod_requirements
from kubectl_ddp.preflight.subject import pods_of, subject_of
from kubectl_ddp.render import render
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.value_source import Given, Kind, Layer, Origin
from kubectl_ddp.util.invocation import location_flags, program
from kubectl_ddp.values.engine import Engine

ANY: Final = {"name": "any", "command": "any", "engine": str(Engine.JOB)}
"""Values of a minimal job, for its size only."""
FREE_STORE: Final = {"pods": 1000}
"""Resources of a store on this machine, where its requests are not enforced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """Values of the command's flags; ``None`` if not given."""

    gpu_type: str | None
    queue: str | None
    cpu: str | None
    memory: str | None


def print_capacity(options: Options, wish: CapacityOptions) -> None:
    """Print free capacity. Raises NotFound for an unknown type or queue, and Forbidden if nothing may be read."""
    backend = backend_for(options)
    found = count(backend, backend.inventory(), wish)
    if options.output is not None:
        print_output(capacity_to_dict(found), options.output)
        return
    look = style(options)
    click.echo(
        "\n\n".join(
            [*(table.render(look) for table in tables(found)), largest_job_message(found, _submit(options, wish))]
        )
    )
    for why in found.unread:
        options.print_message(f"warning: {why}")


def _submit(options: Options, wish: CapacityOptions) -> str:
    """Return the ``submit`` command with the flags of this call."""
    said = {"cpu": wish.cpu, "memory": wish.memory, "queue": wish.queue, "gpu-type": wish.gpu_type}
    flags = [f"--{name} {value}" for name, value in said.items() if value is not None]
    return " ".join([program(), "submit", *(["--local"] if options.local else []), *flags]) + location_flags()


def count(backend: Backend, stock: Inventory, wish: CapacityOptions) -> Capacity:
    """Count the selected free capacity. Raises the errors of :func:`print_capacity`."""
    unread = stock.unknown_reasons()
    machines = None if isinstance(stock.nodes, Unknown) else parse_nodes(stock.nodes)
    shown = None if machines is None else _chosen(machines, wish.gpu_type)
    occupants = None if isinstance(stock.pods, Unknown) else scheduled_pods(stock.pods)
    queues = _named(queues_of(stock), wish.queue)
    if machines is None and queues is None:
        raise Forbidden(unread[0], hint="Request the right to list nodes and pods, or localqueues.")
    fits: list[Gang] | None = None
    if machines is not None and occupants is not None:
        shape = functools.partial(_shape, wish, is_here=backend.where == "local")
        queue = queues[0] if wish.queue and queues else None
        fits = [
            each for each in largest_jobs(machines, occupants, shape, queue) if wish.gpu_type in {None, each.gpu_type}
        ]
    return Capacity(
        where=backend.where,
        namespace=stock.namespace,
        rooms=None if shown is None else node_capacities(shown, occupants),
        gangs=fits,
        queues=queues,
        unread=unread,
    )


def _chosen(machines: Sequence[Machine], gpu_type: str | None) -> list[Machine]:
    found = [machine for machine in machines if gpu_type in {None, type_of(machine)}]
    if gpu_type and not found:
        kinds = ", ".join(sorted({type_of(machine) for machine in machines} - {""})) or "none that is named"
        raise NotFound(f"No machine has GPUs of type '{gpu_type}'.", hint=f"There is {kinds}.")
    return found


def _named(queues: list[Queue] | None, name: str | None) -> list[Queue] | None:
    if queues is None or name is None:
        return queues
    found = [queue for queue in queues if queue.name == name]
    if not found:
        names = ", ".join(queue.name for queue in queues) or "none"
        raise NotFound(f"There is no LocalQueue '{name}' in this namespace.", hint=f"There is {names}.")
    return found


def _shape(
    wish: CapacityOptions, gpu_type: str, gpus: int, *, is_here: bool
) -> tuple[PodRequirements, PodRequirements]:
    """Return the requirements of a worker and the store as ``submit`` would render them."""
    said: dict[str, str | None] = {**ANY, "gpus": str(gpus), "cpu": wish.cpu, "memory": wish.memory}
    said |= {"gpuType": gpu_type or None} if gpus else {}
    layer: Layer = {
        key: Given(value, Origin(Kind.FLAG, f"--{key}")) for key, value in said.items() if value is not None
    }
    spec = resolve([layer], DefaultingContext(image=GPU)).spec
    pods = pods_of(subject_of(spec, render(spec, spec.name), spec.name))
    worker, store = (pod_requirements(pod) for pod in pods if pod)
    return worker, replace(store, wants=FREE_STORE) if is_here else store
