"""Errors of the plugin, and the exit code of the command line for each.

::

    DdpError                 1   any of the following, or an API error without its own class
    ├─ UsageError            2   an invalid flag, key or value
    ├─ NotFound              3   no such job, pod, rank or file
    ├─ PreflightFailed       4   the job cannot run here
    ├─ Forbidden             5   the API server or the file system denies access
    ├─ AlreadyExists             1   the name belongs to another object
    ├─ Unreachable           1   a server or a pod does not answer
    ├─ JobFailed            10   the user's code failed
    ├─ InfrastructureFailed 11   node, preemption, memory or network failed, not the code
    ├─ Cancelled            12   deleted or suspended during the wait
    ├─ StillPending         13   not running, and no wait requested
    ├─ TimedOut            124   the wait ended before the job met the condition
    └─ Interrupted         130   Ctrl-C

Each message is one sentence that names the value; ``hint`` suggests the next step.
"""

from __future__ import annotations

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
