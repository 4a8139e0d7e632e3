"""Renders every job file of a directory beside it: ``python -m kubectl_ddp.examples manifests/examples``.

``digits.job.yaml`` becomes ``digits.pytorchjob.yaml`` and one more file for each other engine. A test renders them
again and compares.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubectl_ddp.errors import DdpError
from kubectl_ddp.render import render
from kubectl_ddp.render.objects import placeholder_run_id
from kubectl_ddp.render.text import to_yaml
from kubectl_ddp.spec.derive import Surroundings
from kubectl_ddp.spec.engine import Engine
from kubectl_ddp.spec.jobfile import read
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.version import default_image

JOB_FILE: Final = ".job.yaml"
RENDERED: Final[Mapping[Engine, str]] = {
    Engine.PYTORCHJOB: ".pytorchjob.yaml",
    Engine.TRAINJOB: ".trainjob.yaml",
    Engine.JOBSET: ".jobset.yaml",
    Engine.JOB: ".indexed-job.yaml",
}
"""Ending of the file of each engine's objects."""


def rendered(job_file: Path, engine: Engine) -> str:
    """The objects of a job file, under a comment that says where they come from. Raises DdpError."""
    resolved = resolve([read(str(job_file))], Surroundings(image=default_image())).spec
    spec = dataclasses.replace(resolved, engine=engine)
    header = (
        f"# Rendered from {job_file.name} by `make docs`, for the engine {engine}. Submit that file: the run id here "
        "is the same each time.\n"
    )
    return header + to_yaml(render(spec, placeholder_run_id(spec)))


def main(arguments: list[str]) -> int:
    """Write the rendered objects of every job file in the directory named."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m kubectl_ddp.examples DIRECTORY", file=sys.stderr)
        return 2
    for job_file in sorted(Path(arguments[0]).glob(f"*{JOB_FILE}")):
        for engine, ending in RENDERED.items():
            target = job_file.with_name(job_file.name.removesuffix(JOB_FILE) + ending)
            target.write_text(rendered(job_file, engine), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DdpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
