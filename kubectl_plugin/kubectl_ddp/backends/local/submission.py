"""Steps from ``submit --local`` to a running engine: checks, the job's directory, the detached process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.backends.local import pods, volumes
from kubectl_ddp.backends.local.directory import ROOT_KIND, JobDirectory, not_writable_error, read_json, write_json
from kubectl_ddp.backends.local.environment import WORKERS, elastic_bounds, of_operator, resolve, worker_replicas
from kubectl_ddp.backends.local.job_status import claim, remove
from kubectl_ddp.backends.local.volumes import CLAIMS
from kubectl_ddp.errors import AlreadyExists, DdpError, PreflightFailed, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.process import program

_NEEDS: Final = {
    "ddp-launch": ("torch", "ddp_trainer"),
    "ddp_trainer": ("torch", "ddp_trainer"),
    "torch.distributed.run": ("torch",),
}
"""Word of a command → modules that the pods' interpreter must be able to import."""

_PROBE: Final = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """Settings that a local job takes from the place of its submission."""

    python: str
    """Interpreter of the pods."""
    directory: str
    """Working directory of the pods."""
    environ: Mapping[str, str]


def prepare(objects: Sequence[Object], machine: LocalMachine) -> list[Object]:
    """Check that this machine can run the job, and return its objects with uid and creation time.

    Raises:
        UsageError: If the local engine does not support such a job.
        PreflightFailed: If something is missing on this machine.
    """
    wanted = [deepcopy(item) for item in objects]
    roots = [item for item in wanted if item.get("kind") == ROOT_KIND]
    if len(roots) != 1:
        raise UsageError(f"A local job is one {ROOT_KIND} with what it needs; here are {len(roots)}.")
    root = roots[0]
    if set(root["spec"]["pytorchReplicaSpecs"]) != {"Worker"}:
        raise UsageError("A local job has workers and no master.", hint="Leave the Master replica out.")
    most = max(elastic_bounds(root)[1], worker_replicas(root))
    if most > WORKERS:
        raise UsageError(f"A local job has at most {WORKERS} nodes, not {most}.")
    root["metadata"]["uid"] = str(uuid.uuid4())
    root["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    templates = [root["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]]
    templates += [item["spec"]["template"] for item in wanted if item.get("kind") == "Job"]
    for template in templates:
        _check_template(template, wanted)
    worker = pods.worker_pod(root, 0, "127.0.0.1")
    variables = [*(worker["spec"]["containers"][0].get("env") or ()), *of_operator(root)]
    resolve(variables, worker, inherited=machine.environ, adapt=str)
    _check_python(machine, templates)
    return wanted


def _check_template(template: Object, objects: Sequence[Object]) -> None:
    containers = template["spec"]["containers"]
    if len(containers) != 1:
        names = ", ".join(str(container["name"]) for container in containers)
        raise UsageError(f"A pod of a local job has one container, not {len(containers)} ({names}).")
    volumes.check(template, objects)


def _check_python(machine: LocalMachine, templates: Iterable[Object]) -> None:
    python = machine.python
    if shutil.which(python) is None:
        raise PreflightFailed(
            f"There is no Python at '{python}'.", hint="Set KUBECTL_DDP_PYTHON to the path of an interpreter."
        )
    needed = list(dict.fromkeys(module for template in templates for module in _needed(template)))
    missing = _missing(python, needed) if needed else []
    if missing:
        raise PreflightFailed(
            f"'{python}' cannot import {' and '.join(missing)}, which every local job needs.",
            hint="Run 'pip install \"kubectl-ddp[trainer]\"' for it, or set KUBECTL_DDP_PYTHON to another interpreter.",
        )


def _needed(template: Object) -> list[str]:
    container = template["spec"]["containers"][0]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [module for word in words for module in _NEEDS.get(str(word), ())]


def _missing(python: str, modules: Sequence[str]) -> list[str]:
    if python == sys.executable:
        return [module for module in modules if importlib.util.find_spec(module) is None]
    # -P: ignore a torch.py in the working directory.
    probe = subprocess.run(
        [python, "-P", "-c", _PROBE, *modules], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if probe.returncode:
        reason = (probe.stderr.strip() or "no answer").splitlines()[-1]
        raise PreflightFailed(
            f"'{python}' does not work as a Python of 3.11 or later: {reason}",
            hint="Set KUBECTL_DDP_PYTHON to another interpreter.",
        )
    return probe.stdout.split()


def create(directory: JobDirectory, objects: Sequence[Object], machine: LocalMachine, *, instead: bool = False) -> None:
    """Create the directory of a job atomically.

    Args:
        directory: Directory to create.
        objects: Objects of the job.
        machine: Settings of the pods.
        instead: True to replace a job of the same name and keep its volume claims.

    Raises:
        AlreadyExists: If there is a job with this name.
    """
    draft = JobDirectory(directory.path.with_name(f".{directory.name}.{os.getpid()}"))
    try:
        draft.path.mkdir(parents=True, mode=0o700)
        write_json(draft.objects_file, volumes.keep_secrets(objects, draft.volumes))
        write_json(draft.machine_file, {"python": machine.python, "directory": machine.directory})
        claim(draft, is_starting=True)
        if instead:
            _inherit(draft, directory)
        draft.path.rename(directory.path)
    except OSError as error:
        shutil.rmtree(draft.path, ignore_errors=True)
        if directory.path.exists():
            raise AlreadyExists(
                f"There is a job '{directory.name}' on this machine already.",
                hint=f"Delete it with '{program()} delete {directory.name}', or choose another --name.",
            ) from error
        raise not_writable_error(directory.path.parent, error) from error


def _inherit(successor: JobDirectory, directory: JobDirectory) -> None:
    """Move the volume claims of a finished job to its successor, and remove the rest of it."""
    claims = directory.volumes / CLAIMS
    if claims.is_dir():
        successor.volumes.mkdir(exist_ok=True)
        claims.rename(successor.volumes / CLAIMS)
    remove(directory)


def read_machine(directory: JobDirectory) -> dict[str, Any]:
    """Return the Python and the working directory of a job. Raises DdpError if the job's directory is incomplete."""
    machine: dict[str, Any] | None = read_json(directory.machine_file)
    if machine is None:
        raise DdpError(
            f"Job '{directory.path.name}' cannot start: {directory.machine_file} is missing.",
            hint="Delete the job, and submit it again.",
        )
    return machine


def start_engine(directory: JobDirectory, environ: Mapping[str, str]) -> None:
    """Start the detached engine of a job, and wait until it has started the first pods.

    Raises:
        DdpError: If the engine fails to start; the message contains its last output.
    """
    machine = read_machine(directory)
    reading, writing = os.pipe()
    try:
        with directory.engine_log.open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # the working directory may contain a json.py
                    "-m",
                    "kubectl_ddp.backends.local.engine",
                    str(directory.path),
                    f"--python={machine['python']}",
                    f"--directory={machine['directory']}",
                    f"--ready={writing}",
                ],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[writing],
            )
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        is_ready = bool(ready.read(1))
    if is_ready:
        process.returncode = 0  # the engine outlives this process, which does not wait for it
        return
    code = process.wait()
    output = directory.engine_log.read_text(errors="replace").strip().splitlines() or [f"it exited with {code}"]
    raise DdpError(f"The local engine of '{directory.name}' did not start: {output[-1]}")


def machine_of(python: str, directory: Path | None, environ: Mapping[str, str]) -> LocalMachine:
    """Return the settings of this command for the pods."""
    found = shutil.which(python) or python
    return LocalMachine(os.path.abspath(found), str(directory or Path.cwd()), environ)  # noqa: PTH100 - keeps a venv's link
