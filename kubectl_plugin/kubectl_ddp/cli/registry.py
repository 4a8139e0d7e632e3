"""Table of all commands. ``--help`` and completion read it without importing any command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """One command."""

    module: str
    """Module of the command."""
    attribute: str
    """Name of the click command in the module."""
    help: str
    """One line of help, shown by ``--help`` and by completion."""


RUN: Final = "Run"
SEE: Final = "See"
REACH: Final = "Reach"
CHANGE: Final = "Change"
SHELL: Final = "Shell"

SECTIONS: Final[Mapping[str, Mapping[str, Entry]]] = {
    RUN: {
        "submit": Entry("kubectl_ddp.cli.jobs.submit", "submit", "Run a script or a job file, on a cluster or here."),
        "preflight": Entry(
            "kubectl_ddp.cli.setup.preflight", "preflight", "Say whether a job can run, and whether at once."
        ),
        "capacity": Entry("kubectl_ddp.cli.setup.capacity", "capacity", "Say what is free, and which job fits now."),
        "plan": Entry("kubectl_ddp.cli.setup.plan", "plan", "Say which layouts of a model fit, and which is fastest."),
        "render": Entry("kubectl_ddp.cli.jobs.render", "render", "Print the objects that submit would create."),
        "clone": Entry("kubectl_ddp.cli.jobs.clone", "clone", "Submit a job again under another name, with changes."),
        "presets": Entry(
            "kubectl_ddp.cli.setup.presets", "presets", "List presets and fabrics, and what each of them sets."
        ),
        "explain": Entry("kubectl_ddp.cli.setup.explain", "explain", "Describe the keys of a job file."),
        "lint": Entry("kubectl_ddp.cli.setup.lint", "lint", "Say what is doubtful in a job, or in any manifest."),
    },
    SEE: {
        "list": Entry("kubectl_ddp.cli.jobs.list", "list_jobs", "List jobs."),
        "status": Entry("kubectl_ddp.cli.jobs.status", "status", "Show one job, its ranks and what failed first."),
        "why": Entry("kubectl_ddp.cli.jobs.why", "why", "Say what is the matter with a job, and what helps."),
        "hang": Entry("kubectl_ddp.cli.jobs.hang", "hang", "Say which rank the others wait for, with its stack."),
        "bundle": Entry(
            "kubectl_ddp.cli.jobs.bundle", "bundle", "Pack all about a job into one file, without secrets."
        ),
        "logs": Entry("kubectl_ddp.cli.jobs.logs", "logs", "Print what ranks wrote."),
        "events": Entry("kubectl_ddp.cli.jobs.events", "events", "Show what happened to a job and its pods."),
        "top": Entry("kubectl_ddp.cli.jobs.top", "top", "Show throughput, step and loss of every rank, live."),
        "report": Entry(
            "kubectl_ddp.cli.jobs.report", "report", "Write a page: curves, ranks, goodput, what happened."
        ),
        "dashboard": Entry("kubectl_ddp.cli.jobs.dashboard", "dashboard", "Open Grafana with a job selected."),
        "wait": Entry(
            "kubectl_ddp.cli.jobs.wait", "wait", "Wait until a job did something; the exit code says how it ended."
        ),
    },
    REACH: {
        "exec": Entry("kubectl_ddp.cli.jobs.exec", "exec_in_pod", "Run a command, or a shell, beside a rank."),
        "profile": Entry("kubectl_ddp.cli.jobs.profile", "profile", "Bring a trace of a rank's next steps here."),
        "port-forward": Entry(
            "kubectl_ddp.cli.jobs.port_forward", "port_forward", "Reach the ports of a rank from here."
        ),
    },
    CHANGE: {
        "scale": Entry("kubectl_ddp.cli.jobs.scale", "scale", "Change the number of nodes of a running job."),
        "restart": Entry("kubectl_ddp.cli.jobs.restart", "restart", "Start all pods anew, from the last checkpoint."),
        "suspend": Entry("kubectl_ddp.cli.jobs.suspend", "suspend", "Stop the pods of a job and keep the job."),
        "resume": Entry("kubectl_ddp.cli.jobs.suspend", "resume", "Let a suspended job run again."),
        "delete": Entry("kubectl_ddp.cli.jobs.delete", "delete", "Delete jobs and everything they own."),
        "prune": Entry("kubectl_ddp.cli.jobs.prune", "prune", "Delete jobs that are over."),
    },
    SHELL: {
        "config": Entry(
            "kubectl_ddp.cli.setup.config", "config", "Show and set your defaults, and where each comes from."
        ),
        "completion": Entry(
            "kubectl_ddp.cli.setup.completion", "completion", "Print the completion script of a shell."
        ),
        "doctor": Entry("kubectl_ddp.cli.setup.doctor", "doctor", "Say whether this machine and the cluster are fit."),
        "version": Entry("kubectl_ddp.cli.setup.version", "version", "Print the version."),
    },
}
"""Sections of ``--help``, in order, with their commands."""

ALIASES: Final[Mapping[str, str]] = {"ls": "list", "describe": "status"}
"""Alternative names of commands, which are not listed in the help."""

MEANT: Final[Mapping[str, str]] = {
    "run": "submit",
    "create": "submit",
    "apply": "submit",
    "start": "submit",
    "train": "submit",
    "get": "list",
    "jobs": "list",
    "ps": "list",
    "log": "logs",
    "watch": "top",
    "shell": "exec",
}
"""Command of another program → our command, for suggestions."""

STOPPING: Final = frozenset({"cancel", "stop", "kill", "pause", "abort", "end"})
"""Commands of other programs that end a job, with or without its state."""

DESTRUCTIVE: Final = frozenset({"delete", "prune"})
"""Commands that are never suggested."""

COMMANDS: Final[Mapping[str, Entry]] = {name: entry for part in SECTIONS.values() for name, entry in part.items()}
