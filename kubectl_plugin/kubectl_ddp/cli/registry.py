"""Table of all commands. ``--help`` and completion read it without importing any command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command."""

    module: str | None
    """Module of the command in this package; None for a command of another package, which an entry point names."""
    attribute: str
    """Name of the click command in the module, or of the entry point."""
    help: str
    """One line of help, shown by ``--help`` and by completion."""


ADDED_COMMANDS: Final = "kubectl_ddp.commands"
"""Group of entry points: click commands in other packages."""

RUN: Final = "Run"
INSPECT: Final = "Inspect"
ACCESS: Final = "Access"
CHANGE: Final = "Change"
SETUP: Final = "Setup"

SECTIONS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    RUN: {
        "init": CommandEntry("setup.init", "init", "Write a job file and a Dockerfile for a script."),
        "submit": CommandEntry("jobs.submit", "submit", "Run a script or a job file on a cluster or locally."),
        "preflight": CommandEntry("setup.doctor", "preflight", "Check whether a job can run in the cluster."),
        "capacity": CommandEntry("setup.doctor", "capacity", "Show what is free by node, GPU type and queue."),
        "render": CommandEntry("jobs.render", "render", "Print the objects that submit would create."),
        "clone": CommandEntry("jobs.render", "clone", "Submit a job again under another name, with changes."),
        "presets": CommandEntry("setup.explain", "presets", "List presets and fabrics, and the values they set."),
        "explain": CommandEntry("setup.explain", "explain", "Describe the keys of a job file."),
    },
    INSPECT: {
        "list": CommandEntry("jobs.list", "list_jobs", "List jobs."),
        "status": CommandEntry("jobs.status", "status", "Show one job, its ranks and its first error."),
        "why": CommandEntry("jobs.diagnose", "why", "Diagnose a job and suggest fixes."),
        "hang": CommandEntry("jobs.diagnose", "hang", "Show the rank that the others wait for, and its stack."),
        "bundle": CommandEntry("jobs.diagnose", "bundle", "Pack all data about a job into one file, redacted."),
        "logs": CommandEntry("jobs.logs", "logs", "Print the output of ranks."),
        "events": CommandEntry("jobs.logs", "events", "Show events of a job and its pods."),
        "top": CommandEntry("jobs.status", "top", "Show throughput, step and loss of every rank, live."),
        "report": CommandEntry(None, "report", "Write an HTML report of a job."),
        "history": CommandEntry("jobs.history", "history", "List jobs submitted from here, also deleted ones."),
        "dashboard": CommandEntry("jobs.dashboard", "dashboard", "Open Grafana with a job selected."),
        "wait": CommandEntry("jobs.logs", "wait", "Wait for a condition of a job."),
    },
    ACCESS: {
        "exec": CommandEntry("jobs.pod_access", "exec_in_pod", "Run a command or a shell in the pod of a rank."),
        "profile": CommandEntry("jobs.pod_access", "profile", "Record a trace of a rank's next steps."),
        "port-forward": CommandEntry(
            "jobs.pod_access", "port_forward", "Forward ports of a rank's pod to this machine."
        ),
    },
    CHANGE: {
        "scale": CommandEntry("jobs.restart", "scale", "Change the number of nodes of a running job."),
        "restart": CommandEntry("jobs.restart", "restart", "Restart all pods from the last checkpoint."),
        "suspend": CommandEntry("jobs.restart", "suspend", "Stop the pods of a job and keep the job."),
        "resume": CommandEntry("jobs.restart", "resume", "Resume a suspended job."),
        "delete": CommandEntry("jobs.delete", "delete", "Delete jobs and everything they own."),
        "prune": CommandEntry("jobs.delete", "prune", "Delete finished jobs."),
    },
    SETUP: {
        "config": CommandEntry("setup.config", "config", "Show and set your defaults."),
        "completion": CommandEntry("setup.program", "completion", "Print the completion script of a shell."),
        "doctor": CommandEntry("setup.doctor", "doctor", "Check this machine and the cluster."),
        "version": CommandEntry("setup.program", "version", "Print the version."),
    },
}
"""Sections of ``--help``, in order, with their commands."""

ALIASES: Final[Mapping[str, str]] = {
    "get": "list",
    "ls": "list",
    "describe": "status",
    "run": "submit",
    "cancel": "suspend",
}
"""Alternative names of commands, which are not listed in the help."""

DESTRUCTIVE: Final = frozenset({"delete", "prune"})
"""Commands that are never suggested."""

COMMANDS: Final[Mapping[str, CommandEntry]] = {
    name: entry for part in SECTIONS.values() for name, entry in part.items()
}
