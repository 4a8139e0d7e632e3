"""Errors of the plugin, the exit code of the command line for each, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class DdpError(Exception):
    """Base of every error that the command line reports in one sentence."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message and the hint."""
        return f"{self.message} {self.hint}".strip()


class UsageError(DdpError):
    """Invalid flag, key or value."""

    exit_code = 2


class NotFound(DdpError):
    """Job, pod, rank or file not found."""

    exit_code = 3


class NoSuchJob(NotFound):
    """No job of this name in the selected place."""

    def __init__(self, name: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name


class PreflightFailed(DdpError):
    """The job cannot run here."""

    exit_code = 4


class Forbidden(DdpError):
    """The API server or the file system denies access."""

    exit_code = 5


class AlreadyExists(DdpError):
    """The name belongs to another object."""


class Unreachable(DdpError):
    """A server or a pod does not answer."""


class JobFailed(DdpError):
    """The user's code failed."""

    exit_code = 10


class InfrastructureFailed(DdpError):
    """A node, a preemption, memory or the network failed the job, not its code."""

    exit_code = 11


class Cancelled(DdpError):
    """The job was deleted or suspended during the wait."""

    exit_code = 12


class StillPending(DdpError):
    """The job does not run yet."""

    exit_code = 13


class TimedOut(DdpError):
    """The wait ended before the job met the condition."""

    exit_code = 124


class Interrupted(DdpError):
    """Interrupted by Ctrl-C."""

    exit_code = 130


def suggest_close_match(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a question with the closest known name; empty if none is close.

    >>> suggest_close_match("trian.py", ["train.py", "data.py"]), suggest_close_match("x", ["train.py"])
    ("Did you mean 'train.py'?", '')
    """
    import difflib  # noqa: PLC0415 - only for errors

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean '{close[0]}'?" if close else ""


def suggest_known(word: str, known: Iterable[str]) -> str:
    """Return a question with the closest known name; all known names if none is close.

    >>> suggest_known("x", ["train", "data"])
    'There are train, data.'
    """
    names = list(known)
    return suggest_close_match(word, names) or f"There are {', '.join(names)}."


def suggest_file(path: str) -> str:
    """Return a question with the closest file name in the directory of a missing file; empty if none is close."""
    missing = Path(path)
    try:
        beside = [entry.name for entry in missing.parent.iterdir() if entry.is_file()]
    except OSError:
        return ""
    return suggest_close_match(path, [str(missing.with_name(name)) for name in beside])
