"""Objects of every job file in ``manifests/examples``.

``digits.ddp.yaml`` becomes ``pytorchjob/digits.yaml`` and one file for each other engine. A job file that names its
engine becomes one file. The directory of an engine holds Kubernetes objects only, so ``kubectl apply -f`` accepts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kubectl_ddp.code.script import read_script
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.render import render
from kubectl_ddp.render.objects import PLACEHOLDER, placeholder_run_id
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from kubectl_ddp.util.yaml_text import to_yaml
from kubectl_ddp.values.program import Script
from kubectl_ddp.version import default_image

JOB_FILE: Final = ".ddp.yaml"
RENDERED: Final[Mapping[Engine, str]] = {Engine(name): name for name in ENGINES} | {Engine.JOB: "indexed-job"}
"""Directory of each engine's objects, next to the job files."""


def output_files(job_file: Path) -> dict[Engine, Path]:
    """Return the output file for each engine of a job file. Raises DdpError."""
    named = _job(job_file).engine
    stem = job_file.name.removesuffix(JOB_FILE)
    engines = RENDERED if named is Engine.AUTO else (named,)
    return {engine: job_file.parent / RENDERED[engine] / f"{stem}.yaml" for engine in engines}


def render_objects(job_file: Path, engine: Engine) -> str:
    """Render the objects of a job file, with a comment that names the source. Raises DdpError."""
    spec = dataclasses.replace(_job(job_file), engine=engine)
    code = None
    if isinstance(spec.program, Script):
        code = read_script(spec.program.path)
        # Relative to the job file, so that the objects do not depend on the working directory.
        spec = dataclasses.replace(spec, program=Script(code.file))
    header = (
        f"# Rendered from ../{job_file.name} by `make docs`, for the engine {engine}. Submit that file: the run id "
        "here is the same each time.\n"
        "# The Secret below is published, so it protects nothing. Replace its zeros by random digits, for example:\n"
        f'#   sed "s/0\\{{{len(PLACEHOLDER)}\\}}/$(openssl rand -hex 32)/" {output_files(job_file)[engine].name}'
        " | kubectl apply -f -\n"
    )
    return header + to_yaml(render(spec, placeholder_run_id(spec, code), code=code, run_secret=PLACEHOLDER))


def _job(job_file: Path) -> JobSpec:
    return resolve([read(str(job_file))], DefaultingContext(image=default_image())).spec


def files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and text of the objects of every job file in a folder. Raises DdpError."""
    for job_file in sorted(folder.glob(f"*{JOB_FILE}")):
        for engine, target in output_files(job_file).items():
            yield target, render_objects(job_file, engine)
