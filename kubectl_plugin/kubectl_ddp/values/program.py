"""Program of a job: a local script, a module of the image, or any command of the image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Final, TypeAlias

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
