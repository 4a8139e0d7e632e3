"""Directory of this machine's jobs, and of one job: desired state, status, and the files of its pods.

::

  $XDG_STATE_HOME/kubectl-ddp/jobs/<name>/
    objects.json    the rendered objects, without the Secret of the run; commands edit them, under a lock
    status.json     the status; only the engine writes it
    engine.json     identity of the engine's process
    machine.json    interpreter and working directory of the pods
    engine.log      output of the engine itself, normally empty
    summary.json    summary of the run
    pods/<pod>/log  output of the pod, each line with its time
    volumes/        one directory per volume, and secrets/ with files that only the owner can read

Every file is replaced as a whole, so readers never see a partial file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.errors import DdpError, Forbidden, NoSuchJob, PreflightFailed
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.process import program


def local_jobs_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory with one subdirectory per local job (XDG base directory specification)."""
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return home / "kubectl-ddp" / "jobs"


def local_job_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the sorted names of this machine's jobs; empty if the directory is missing or unreadable."""
    try:
        with os.scandir(local_jobs_directory(environ)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


ROOT_KIND: Final = "PyTorchJob"

TEMPORARY: Final = f"{GROUP}/temporary"
"""Annotation of a pod: JSON list of its directories outside of the job's, removed after the engine has died."""


def not_writable_error(directory: Path, error: OSError) -> DdpError:
    """Return the error for a state directory that cannot be written."""
    return PreflightFailed(
        f"Jobs of this machine are kept in '{directory}', which cannot be written: {error.strerror or error}.",
        hint="Set XDG_STATE_HOME to a directory that can.",
    )


def no_such_job(name: str) -> NoSuchJob:
    """Return the error for a job that does not exist."""
    return NoSuchJob(name, f"Job '{name}' does not exist on this machine.", hint=f"'{program()} list' shows all jobs.")


def unreadable(path: Path, error: OSError) -> Forbidden:
    """Return the error for job files that cannot be read, such as another user's."""
    return Forbidden(
        f"'{path}' cannot be read: {error.strerror or error}.",
        hint="Ask as the user whose job it is, or set XDG_STATE_HOME to a directory of yours.",
    )


def write_json(file: Path, document: object) -> None:
    """Replace a file by a JSON document atomically."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    draft.replace(file)


def read_json(file: Path) -> Any:
    """Return the content of a JSON file, or None if it is missing or truncated (by a power loss).

    Raises:
        Forbidden: If the file may not be read.
    """
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise unreadable(file, error) from error


def root_of(objects: list[Object]) -> Object:
    """Return the object that owns the others."""
    return next(item for item in objects if item.get("kind") == ROOT_KIND)


class JobDirectory:
    """Paths and files of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects_file = path / "objects.json"
        self.status_file = path / "status.json"
        self.engine_file = path / "engine.json"
        self.engine_log = path / "engine.log"
        self.machine_file = path / "machine.json"
        self.summary_file = path / "summary.json"
        self.volumes = path / "volumes"

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.path.name

    def pod(self, pod: str) -> Path:
        """Return the directory of a pod's own files: its log and its termination message."""
        return self.path / "pods" / pod

    def log(self, pod: str) -> Path:
        """Return the path of a pod's log, which covers all its containers."""
        return self.pod(pod) / "log"

    def objects(self) -> list[Object]:
        """Return the desired state.

        Raises:
            NotFound: If the job does not exist.
        """
        found = read_json(self.objects_file)
        if not isinstance(found, list) or not found:
            raise no_such_job(self.name)
        return found

    def status(self) -> dict[str, Any]:
        """Return the status last written by the engine; empty before the first time."""
        found = read_json(self.status_file)
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def edit(self) -> Iterator[list[Object]]:
        """Yield the desired state to edit in place; it is written back if the block ends without an error."""
        with self.locked():
            objects = self.objects()
            yield objects
            write_json(self.objects_file, objects)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for edits."""
        import fcntl  # noqa: PLC0415 - Windows lacks it, and commands that use a cluster import this module

        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self.objects()
            raise
        except OSError as error:
            raise not_writable_error(self.path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
