"""The directory of one job: what is wanted of it, what it came to, and where its pods keep their things.

::

    $XDG_STATE_HOME/kubectl-ddp/jobs/<name>/
        objects.json    the rendered objects, without the Secret of the run; commands edit them, under a lock
        status.json     what the engine made of them; only the engine writes it
        engine.json     which process the engine is
        machine.json    interpreter and working directory of the pods
        engine.log      what the engine itself had to say, normally nothing
        summary.json    what the run came to
        pods/<pod>/log  what the pod wrote, each line with its time
        volumes/        one directory per volume, and secrets/ with a file that only its owner can read

Every file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.backend import Object
from kubectl_ddp.errors import DdpError, Forbidden, NoSuchJob, PreflightFailed
from kubectl_ddp.invocation import program

ROOT_KIND: Final = "PyTorchJob"

TEMPORARY: Final = f"{GROUP}/temporary"
"""Annotation of a pod: a JSON list of its directories outside of the job's, to be removed after the engine's death."""


def not_writable_error(directory: Path, error: OSError) -> DdpError:
    """The sentence about a state directory that cannot be written."""
    return PreflightFailed(
        f"Jobs of this machine are kept in '{directory}', which cannot be written: {error.strerror or error}.",
        hint="Set XDG_STATE_HOME to a directory that can.",
    )


def no_such_job(name: str) -> NoSuchJob:
    """The sentence about a job that is not there."""
    return NoSuchJob(name, f"There is no job '{name}' on this machine.", hint=f"'{program()} list' names them all.")


def unreadable(path: Path, error: OSError) -> Forbidden:
    """The sentence about files of jobs that cannot be read, as those of another user."""
    return Forbidden(
        f"'{path}' cannot be read: {error.strerror or error}.",
        hint="Ask as the user whose job it is, or set XDG_STATE_HOME to a directory of yours.",
    )


def write_json(file: Path, document: object) -> None:
    """Replace a file by a JSON document, in one step."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    draft.replace(file)


def read_json(file: Path) -> Any:
    """A JSON file, or nothing when it is not there; a torn one (power loss) counts as not there.

    Raises:
        Forbidden: it may not be read.
    """
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise unreadable(file, error) from error


def root_of(objects: list[Object]) -> Object:
    """The object that owns the others."""
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
        """Directory of a pod's own files: its log and its termination message."""
        return self.path / "pods" / pod

    def log(self, pod: str) -> Path:
        """What the pod wrote, over all its containers."""
        return self.pod(pod) / "log"

    def objects(self) -> list[Object]:
        """The desired state. Raises NotFound when there is no such job."""
        found = read_json(self.objects_file)
        if not isinstance(found, list) or not found:
            raise no_such_job(self.name)
        return found

    def status(self) -> dict[str, Any]:
        """What the engine last wrote; empty before it first did."""
        found = read_json(self.status_file)
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def edit(self) -> Iterator[list[Object]]:
        """The desired state, to be changed in place; written back when the block ends without an error."""
        with self.locked():
            objects = self.objects()
            yield objects
            write_json(self.objects_file, objects)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else edits meanwhile."""
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
