"""Command ``kubectl ddp capacity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options

if TYPE_CHECKING:
    from kubectl_ddp.cli.setup.capacity_run import CapacityOptions


@click.command()
@click.option("--gpu-type", metavar="TYPE", help="Machines with these GPUs only.")
@click.option("--queue", metavar="NAME", help="This LocalQueue only; its quota bounds the job that fits.")
@click.option("--cpu", metavar="CPU", help="Cores per node of the job that fits; what submit takes by default.")
@click.option("--memory", metavar="SIZE", help="Memory per node of the job that fits; what submit takes by default.")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None, cpu: str | None, memory: str | None) -> None:
    """Say what is free, by machine, kind of GPU and queue, and what the largest job is that fits now.

    What you may not read is said and left out. In a cluster, free is what pods have not asked for; on this machine,
    what programs do not use.
    """
    from kubectl_ddp.cli.setup.capacity_run import CapacityOptions, print_capacity  # noqa: PLC0415 - not needed for help and completion

    wish: CapacityOptions = CapacityOptions(gpu_type=gpu_type, queue=queue, cpu=cpu, memory=memory)
    print_capacity(options, wish)
