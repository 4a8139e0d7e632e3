"""Command ``kubectl ddp capacity``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options


@click.command(cls=HelpfulCommand)
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option("--queue", metavar="NAME", help="Only this LocalQueue.")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None) -> None:
    """Show free capacity by node, type of GPU and queue.

    Objects that you may not read are reported and skipped. In a cluster, free is what pods do not request; on this
    machine, what programs do not use.
    """
    from kubectl_ddp.cli.setup.capacity_run import print_capacity  # noqa: PLC0415 - not needed for help and completion

    print_capacity(options, gpu_type=gpu_type, queue=queue)
