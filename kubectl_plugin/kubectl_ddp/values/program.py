"""What runs in a job and what runs it: program, packages that its image lacks, engine and gang scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Final, TypeAlias

from kubectl_ddp.values.parsers import Raw, Schema, text, text_list
from kubectl_ddp.values.quantity import BadValue

TRAINER: Final = "ddp_trainer"
"""Module of the reference trainer."""


class Launcher(StrEnum):
    """Program that starts the ranks of a node."""

    DDP = "ddp"
    """``ddp-launch``, with a store of the job."""
    TORCHRUN = "torchrun"
    """torchrun of the job's image, with c10d rendezvous in worker 0."""


@dataclass(frozen=True, slots=True)
class Script:
    """A local Python file. It is shipped with the job; its imports must be in the image."""

    path: str


@dataclass(frozen=True, slots=True)
class Module:
    """A Python module of the image, run as by ``python -m``."""

    name: str


@dataclass(frozen=True, slots=True)
class Command:
    """Command of the image that does not run in Python."""

    words: tuple[str, ...]


Program: TypeAlias = Script | Module | Command


def default_job_name(program: Program) -> str:
    """Return a default job name for a program: lower case letters, digits and dashes, starting with a letter.

    >>> default_job_name(Script("My_Train.v2.py")), default_job_name(Module("ddp_trainer"))
    ('my-train-v2', 'ddp-trainer')
    """
    match program:
        case Script(path):
            word = PurePath(path).stem
        case Module(name):
            word = name.removesuffix(".__main__").rpartition(".")[2]
        case Command(words):
            word = PurePath(words[0]).stem
    letters = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:40].strip("-")
    return letters if letters[:1].isalpha() else f"job-{letters}".rstrip("-")


class Gang(StrEnum):
    """Scheduler that starts either the minimum number of nodes together or none."""

    NONE = "none"
    AUTO = "auto"
    """The first gang scheduler that the cluster serves."""
    KUEUE = "kueue"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"
    KAI = "kai"
    NATIVE = "native"
    """Kubernetes' own scheduler, by Workload and PodGroup of scheduling.k8s.io."""


class QueueResize(StrEnum):
    """Time at which a job in a queue of Kueue may get another number of nodes."""

    START = "start"
    """With too little quota, the job starts with fewer nodes and keeps them."""
    RUNNING = "running"
    """The job starts with its minimum, and can be scaled while it runs."""


SCHEMA: Final[Schema] = {"type": ["array", "string"], "items": {"type": "string"}}
_LOCAL: Final = re.compile(r"-r|--requirement|-c|--constraint|-e|--editable|-f|--find-links|[./~]|file:|\S+ *@ *file:")
"""Start of a line that names a file of the machine on which it is read."""
_CREDENTIALS: Final = re.compile(r"://[^/\s]+@")
_COMMENT: Final = re.compile(r"(^|\s)#.*")


def parse_requirements(raw: Raw) -> tuple[str, ...]:
    """Return the lines of a requirements file, given as its path or as a list of lines. Comments are left out."""
    lines = text_list(raw) if isinstance(raw, (list, tuple)) else _lines_of(text(raw))
    found = tuple(line for entry in lines if (line := _COMMENT.sub("", entry).strip()))
    for line in found:
        if _LOCAL.match(line):
            raise BadValue(
                f"'{line}' names a file of this machine, and pods do not have it",
                hint="Write the packages themselves, or make an image of them with --build.",
            )
        if _CREDENTIALS.search(line):
            raise BadValue(
                "a line has credentials, and everyone who may read the job can read them",
                hint="Keep the URL in a Secret: --secret-env PIP_INDEX_URL=SECRET:KEY.",
            )
    if not found:
        raise BadValue("there is no package", hint="Write one requirement on each line.")
    return found


def _lines_of(path: str) -> list[str]:
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadValue(f"the file '{path}' cannot be read: {why}", hint="Name a requirements file of pip.") from None
    return content.replace("\\\n", " ").splitlines()
