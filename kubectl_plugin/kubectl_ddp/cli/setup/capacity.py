"""Command ``kubectl ddp capacity``."""

from __future__ import annotations

import click

from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import print_output, style


@click.command(cls=HelpfulCommand)
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option("--queue", metavar="NAME", help="Only this LocalQueue.")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None) -> None:
    """Show free capacity by node, type of GPU and queue.

    Objects that you may not read are reported and skipped. In a cluster, free is what pods do not request; on this
    machine, what programs do not use.
    """
    from kubectl_ddp.capacity import capacity_to_dict, report_capacity, tables  # noqa: PLC0415 - not needed for help

    backend = backend_for(options)
    report = report_capacity(backend.where, backend.inventory(), gpu_type=gpu_type, queue=queue)
    if options.output is not None:
        print_output(capacity_to_dict(report), options.output)
        return
    form = style(options)
    click.echo("\n\n".join(table.render(form) for table in tables(report)))
    for reason in report.unread:
        options.print_message(f"warning: {reason}")
