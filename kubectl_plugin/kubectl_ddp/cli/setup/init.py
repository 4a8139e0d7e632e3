"""Command ``kubectl ddp init``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options


@click.command(cls=HelpfulCommand)
@click.argument("script", required=False)
@click.option("--name", metavar="NAME", help="Name of the job and of its file (default: from the script).")
@click.option("--image", metavar="IMAGE", help="Repository that your image is pushed to.")
@click.option("--nnodes", metavar="N|MIN:MAX", help="Nodes; MIN:MAX makes the job elastic.")
@click.option("--gpus", metavar="N", help="GPUs per node; 0 is a job without GPUs.")
@click.option("--base", metavar="IMAGE", help="Image to build on (default: the trainer image of this release).")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@shared_options()
def init(
    options: Options,
    script: str | None,
    *,
    name: str | None,
    image: str | None,
    nnodes: str | None,
    gpus: str | None,
    base: str | None,
    force: bool,
) -> None:
    """Write a job file and a Dockerfile for SCRIPT into the current directory.

    Prompts for the script, the image and the size, unless flags set them. 'submit -f NAME.ddp.yaml --build' builds the
    image, pushes it, and submits the job.
    """
    from kubectl_ddp.cli.setup.init_run import Answers, write_files  # noqa: PLC0415 - not needed for help and completion

    write_files(options, Answers(script, name, image, nnodes, gpus, base), overwrites=force)
