"""Implementation of ``capacity``: reads a place, selects rows, and prints them."""

from __future__ import annotations

import click

from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.capacity import (
    Capacity,
    Inventory,
    NodeCapacity,
    Queue,
    capacity_to_dict,
    node_capacities,
    queues_of,
    tables,
)
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Forbidden, NotFound


def print_capacity(options: Options, *, gpu_type: str | None, queue: str | None) -> None:
    """Print free capacity. Raises NotFound for an unknown type or queue, and Forbidden if nothing may be read."""
    backend = backend_for(options)
    found = report_capacity(backend.where, backend.inventory(), gpu_type=gpu_type, queue=queue)
    if options.output is not None:
        print_output(capacity_to_dict(found), options.output)
        return
    look = style(options)
    click.echo("\n\n".join(table.render(look) for table in tables(found)))
    for why in found.unread:
        options.print_message(f"warning: {why}")


def report_capacity(where: str, inventory: Inventory, *, gpu_type: str | None, queue: str | None) -> Capacity:
    """Return the selected capacity of a place. Raises the errors of :func:`print_capacity`."""
    unread = inventory.unknown_reasons()
    nodes, queues = node_capacities(inventory), queues_of(inventory)
    if nodes is None and queues is None:
        raise Forbidden(unread[0], hint="Request the right to list nodes and pods, or localqueues.")
    return Capacity(
        where=where,
        namespace=inventory.namespace,
        nodes=None if nodes is None else _with_gpu_type(nodes, gpu_type),
        queues=None if queues is None else _with_name(queues, queue),
        unread=unread,
    )


def _with_gpu_type(nodes: list[NodeCapacity], gpu_type: str | None) -> list[NodeCapacity]:
    found = [node for node in nodes if gpu_type in {None, node.gpu_type}]
    if gpu_type and not found:
        kinds = ", ".join(sorted({node.gpu_type for node in nodes} - {""})) or "none that is named"
        raise NotFound(f"No machine has GPUs of type '{gpu_type}'.", hint=f"There is {kinds}.")
    return found


def _with_name(queues: list[Queue], name: str | None) -> list[Queue]:
    found = [queue for queue in queues if name in {None, queue.name}]
    if name and not found:
        names = ", ".join(queue.name for queue in queues) or "none"
        raise NotFound(f"There is no LocalQueue '{name}' in this namespace.", hint=f"There is {names}.")
    return found
