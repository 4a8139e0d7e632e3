"""Command ``kubectl ddp init``: prompts for what flags do not give, and writes a job file and a Dockerfile."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.code.script import check_script, check_script_name, imported_modules
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.spec.fields import FILE_KEYS, SCHEMA_FILE, schema_text
from kubectl_ddp.util.process import program
from kubectl_ddp.values.program import Script, default_job_name
from kubectl_ddp.values.quantity import BadValue
from kubectl_ddp.version import default_image

DOCKERFILE: Final = "Dockerfile"
REQUIREMENTS: Final = "requirements.txt"
EXAMPLE_IMAGE: Final = "registry.example.com/team/train"
SIZE: Final = re.compile(r"(\d+(?::\d+)?)\s*x\s*(\d+)")

JOB: Final = """\
# yaml-language-server: $schema={schema}
# Job of {script_name}. '{program} explain' describes all keys.
#
#     {program} submit -f {file} --build --follow
apiVersion: ddp.dev/v1alpha1
kind: DDPJob
metadata:
  name: {name}
spec:
  # Each submission sends the script, so a changed script needs no new image.
  script: {script_value}
  # Directory to send with the script, for modules of your own.
  {code}
  # args: [--epochs, "10"]
  # submit --build pushes your image to this repository. Without a tag, the tag is the image's id.
  image: {image}
  # Nodes. MIN:MAX, as in 2:4, makes the job elastic.
  nnodes: {nnodes}
  {processes}
  # Volume that all nodes can mount, for checkpoints that outlive the job.
  # checkpointClaim: checkpoints
"""
GPUS: Final = "# GPUs per node, with one process for each.\n  gpus: {gpus}"
CPUS: Final = "# Processes per node. 'gpus: 8' instead gives each node 8 GPUs, with one process for each.\n  nproc: 1"

IMAGE: Final = """\
# Image of the job in {file}: Python, torch, ddp-launch, and what the script imports.
FROM {base}
{install}
"""
INSTALL: Final = """\
USER 0:0
RUN --mount=type=bind,source={requirements},target=/tmp/{requirements} \\
    (python -m pip --version || python -m ensurepip) && \\
    python -m pip install --no-cache-dir --requirement /tmp/{requirements}
# Pods run as this numeric user, with a read-only root file system.
USER 65532:65532"""
INSTALL_LATER: Final = f"# Write your packages into {REQUIREMENTS}, then run init again with --force."


@dataclass(slots=True)
class InitOptions:
    """Values of the flags; the questions fill in what is missing."""

    script: str | None
    name: str | None
    image: str | None
    nnodes: str | None
    gpus: str | None
    base: str | None


def write_files(options: Options, answers: InitOptions, *, overwrites: bool) -> None:
    """Write the job file, its schema and the Dockerfile. Raises UsageError."""
    if sys.stdin.isatty():
        _prompt(answers)
    else:
        answers.script = answers.script or _only_script()
        _check_complete(answers)
    values = _checked(answers)
    job_file = Path(f"{values['name']}.ddp.yaml")
    if job_file.exists() and not overwrites:
        raise UsageError(f"'{job_file}' exists.", hint="--force overwrites it, and --name chooses another name.")
    texts = {
        job_file: _job_text(values, str(job_file)),
        Path(SCHEMA_FILE): schema_text(),
        Path(DOCKERFILE): _image_text(values, str(job_file)),
    }
    for path, text in texts.items():
        if path.exists() and not overwrites:
            options.print_message(f"'{path}' exists and is kept; --force overwrites it.")
            continue
        _write(path, text)
        click.echo(path)
    options.print_message(f"Next: '{program()} submit -f {job_file} --build'.")


def _only_script() -> str | None:
    """Return the only Python file of the current directory that mentions torch."""
    found = [path.name for path in sorted(Path().glob("*.py")) if b"torch" in path.read_bytes()]
    return found[0] if len(found) == 1 else None


def _prompt(answers: InitOptions) -> None:
    """Prompt for missing values on the terminal."""
    answers.script = answers.script or click.prompt("Script", default=_only_script(), err=True)
    answers.image = answers.image or click.prompt(f"Image repository, as in {EXAMPLE_IMAGE}", err=True)
    if answers.nnodes and answers.gpus:
        return
    size = click.prompt(
        "Nodes x GPUs per node, as in 2x8", default=f"{answers.nnodes or 1}x{answers.gpus or 1}", err=True
    )
    match = SIZE.fullmatch(size.strip())
    if match is None:
        raise UsageError(f"'{size}' is not nodes x GPUs.", hint="Write it as 2x8, or 2:4x8 for an elastic job.")
    answers.nnodes, answers.gpus = answers.nnodes or match[1], answers.gpus or match[2]


def _check_complete(answers: InitOptions) -> None:
    """Reject missing values without a terminal. Raises UsageError."""
    given = {"SCRIPT": answers.script, "--image": answers.image, "--nnodes": answers.nnodes, "--gpus": answers.gpus}
    missing = [flag for flag, value in given.items() if value is None]
    if answers.script is not None:
        check_script(answers.script)
    if missing:
        raise UsageError(
            f"stdin is not a terminal, so init cannot prompt for missing values: {', '.join(missing)}.",
            hint=f"Write '{program()} init train.py --image {EXAMPLE_IMAGE} --nnodes 2 --gpus 8'.",
        )


def _checked(answers: InitOptions) -> dict[str, Any]:
    """Return the values of the templates. Raises UsageError for an invalid one."""
    script = str(answers.script)
    path = check_script(script)
    check_script_name(path)
    values: dict[str, Any] = {
        "script": os.path.relpath(path),
        "name": answers.name or default_job_name(Script(script)),
        "image": answers.image,
        "nnodes": answers.nnodes,
        "gpus": answers.gpus,
    }
    for key in ("name", "image", "nnodes", "gpus"):
        _check("--" + key, key, values[key])
    values["has_gpus"] = int(values["gpus"]) > 0
    values["base"] = answers.base or f"{default_image()}{'-cuda' if values['has_gpus'] else ''}"
    _check("--base", "image", values["base"])
    return values


def _check(flag: str, key: str, value: str) -> None:
    """Reject a value that the key of a job file does not allow. Raises UsageError."""
    try:
        FILE_KEYS[key].parse(value)
    except BadValue as error:
        raise UsageError(f"{flag}: {error.message}.", hint=error.hint) from None


def _job_text(values: dict[str, Any], file: str) -> str:
    """Return the text of the job file."""
    script = Path(values["script"])
    folder = str(script.parent)
    sends_directory = any(_local_modules(script))
    return JOB.format(
        **values,
        file=file,
        program=program(),
        schema=SCHEMA_FILE,
        script_name=script.name,
        script_value=json.dumps(values["script"]),
        code=f"{'' if sends_directory else '# '}code: {json.dumps(folder)}",
        processes=GPUS.format(gpus=values["gpus"]) if values["has_gpus"] else CPUS,
    )


def _local_modules(script: Path) -> Iterator[str]:
    """Yield the modules beside a script that it imports."""
    for name in sorted(imported_modules(script.read_bytes())):
        if script.with_name(f"{name}.py").is_file() or script.with_name(name).is_dir():
            yield name


def _image_text(values: dict[str, Any], file: str) -> str:
    """Return the text of the Dockerfile."""
    install = INSTALL.format(requirements=REQUIREMENTS) if Path(REQUIREMENTS).is_file() else INSTALL_LATER
    return IMAGE.format(file=file, base=values["base"], install=install)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DdpError(f"'{path}' cannot be written: {error.strerror}.", hint="Run init in your directory.") from None


@click.command(cls=GroupedHelpCommand)
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
    write_files(options, InitOptions(script, name, image, nnodes, gpus, base), overwrites=force)
