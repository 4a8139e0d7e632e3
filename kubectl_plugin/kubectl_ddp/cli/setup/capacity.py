"""Command ``kubectl ddp capacity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kubectl_ddp.cli.internal.command_help import HelpfulCommand
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options

if TYPE_CHECKING:
    from kubectl_ddp.cli.setup.capacity_run import CapacityOptions


@click.command(cls=HelpfulCommand)
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option("--queue", metavar="NAME", help="Only this LocalQueue; its quota limits the job that fits.")
@click.option("--cpu", metavar="CPU", help="Cores per node of the job that fits (default as in submit).")
@click.option("--memory", metavar="SIZE", help="Memory per node of the job that fits (default as in submit).")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None, cpu: str | None, memory: str | None) -> None:
    """Show free capacity by node, type of GPU and queue, and the largest job that fits now.

    Objects that you may not read are reported and skipped. In a cluster, free is what pods do not request; on this
    machine, what programs do not use.
    """
    from kubectl_ddp.cli.setup.capacity_run import CapacityOptions, print_capacity  # noqa: PLC0415 - not needed for help and completion

    wish: CapacityOptions = CapacityOptions(gpu_type=gpu_type, queue=queue, cpu=cpu, memory=memory)
    print_capacity(options, wish)
