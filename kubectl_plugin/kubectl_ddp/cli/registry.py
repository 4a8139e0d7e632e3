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
INSPECT: Final = "Inspect"
ACCESS: Final = "Access"
CHANGE: Final = "Change"
SETUP: Final = "Setup"

SECTIONS: Final[Mapping[str, Mapping[str, Entry]]] = {
    RUN: {
        "init": Entry("kubectl_ddp.cli.setup.init", "init", "Write a job file and a Dockerfile for a script."),
        "submit": Entry("kubectl_ddp.cli.jobs.submit", "submit", "Run a script or a job file on a cluster or locally."),
        "preflight": Entry(
            "kubectl_ddp.cli.setup.preflight", "preflight", "Check whether a job can run in the cluster."
        ),
        "capacity": Entry(
            "kubectl_ddp.cli.setup.preflight", "capacity", "Show what is free by node, GPU type and queue."
        ),
        "render": Entry("kubectl_ddp.cli.jobs.render", "render", "Print the objects that submit would create."),
        "clone": Entry("kubectl_ddp.cli.jobs.clone", "clone", "Submit a job again under another name, with changes."),
        "presets": Entry(
            "kubectl_ddp.cli.setup.explain", "presets", "List presets and fabrics, and the values they set."
        ),
        "explain": Entry("kubectl_ddp.cli.setup.explain", "explain", "Describe the keys of a job file."),
    },
    INSPECT: {
        "list": Entry("kubectl_ddp.cli.jobs.list", "list_jobs", "List jobs."),
        "status": Entry("kubectl_ddp.cli.jobs.status", "status", "Show one job, its ranks and its first error."),
        "why": Entry("kubectl_ddp.cli.jobs.diagnose", "why", "Diagnose a job and suggest fixes."),
        "hang": Entry(
            "kubectl_ddp.cli.jobs.diagnose", "hang", "Show the rank that the others wait for, and its stack."
        ),
        "bundle": Entry(
            "kubectl_ddp.cli.jobs.diagnose", "bundle", "Pack all data about a job into one file, redacted."
        ),
        "logs": Entry("kubectl_ddp.cli.jobs.logs", "logs", "Print the output of ranks."),
        "events": Entry("kubectl_ddp.cli.jobs.events", "events", "Show events of a job and its pods."),
        "top": Entry("kubectl_ddp.cli.jobs.top", "top", "Show throughput, step and loss of every rank, live."),
        "report": Entry("kubectl_ddp.cli.jobs.report", "report", "Write an HTML report of a job."),
        "dashboard": Entry("kubectl_ddp.cli.jobs.dashboard", "dashboard", "Open Grafana with a job selected."),
        "wait": Entry("kubectl_ddp.cli.jobs.events", "wait", "Wait for a condition of a job."),
    },
    ACCESS: {
        "exec": Entry(
            "kubectl_ddp.cli.jobs.pod_access", "exec_in_pod", "Run a command or a shell in the pod of a rank."
        ),
        "profile": Entry("kubectl_ddp.cli.jobs.pod_access", "profile", "Record a trace of a rank's next steps."),
        "port-forward": Entry(
            "kubectl_ddp.cli.jobs.pod_access", "port_forward", "Forward ports of a rank's pod to this machine."
        ),
    },
    CHANGE: {
        "scale": Entry("kubectl_ddp.cli.jobs.scale", "scale", "Change the number of nodes of a running job."),
        "restart": Entry("kubectl_ddp.cli.jobs.restart", "restart", "Restart all pods from the last checkpoint."),
        "suspend": Entry("kubectl_ddp.cli.jobs.restart", "suspend", "Stop the pods of a job and keep the job."),
        "resume": Entry("kubectl_ddp.cli.jobs.restart", "resume", "Resume a suspended job."),
        "delete": Entry("kubectl_ddp.cli.jobs.delete", "delete", "Delete jobs and everything they own."),
        "prune": Entry("kubectl_ddp.cli.jobs.delete", "prune", "Delete finished jobs."),
    },
    SETUP: {
        "config": Entry("kubectl_ddp.cli.setup.config", "config", "Show and set your defaults."),
        "completion": Entry("kubectl_ddp.cli.setup.program", "completion", "Print the completion script of a shell."),
        "doctor": Entry("kubectl_ddp.cli.setup.doctor", "doctor", "Check this machine and the cluster."),
        "version": Entry("kubectl_ddp.cli.setup.program", "version", "Print the version."),
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

COMMANDS: Final[Mapping[str, Entry]] = {name: entry for part in SECTIONS.values() for name, entry in part.items()}
