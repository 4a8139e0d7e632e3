"""Jobs that are releases of Helm, by ``charts/ddp-job``: what stands beside the root goes with the release alone."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.errors import UsageError
from kubectl_ddp.invocation import location_flags, program

NAME: Final = "meta.helm.sh/release-name"
NAMESPACE: Final = "meta.helm.sh/release-namespace"
"""Annotations by which Helm knows what it has made."""


def helm_uninstall_command(job: Object) -> str | None:
    """The command that takes the release of a job away; ``None`` where Helm has not made it."""
    annotations = job["metadata"].get("annotations") or {}
    if NAME not in annotations:
        return None
    return f"helm uninstall {annotations[NAME]} -n {annotations.get(NAMESPACE, job['metadata'].get('namespace', ''))}"


def helm_deletion_warning(job: Object) -> str | None:
    """What a person should know who deletes the root of a job alone; ``None`` where all goes with it."""
    command = helm_uninstall_command(job)
    if command is None:
        return None
    name = job["metadata"]["name"]
    return f"Helm has made job {name}: its store, Services and NetworkPolicy stay until '{command}' takes them away."


def reject_helm_managed(job: Object) -> None:
    """Raise UsageError where a new run would find the store of the old one, which is the release's and has ended."""
    command = helm_uninstall_command(job)
    if command is None:
        return
    name = job["metadata"]["name"]
    raise UsageError(
        f"Job '{name}' has failed, and Helm has made it: a new run in its place would be none of its release.",
        hint=f"'{command}' and 'helm install' make it anew, and it goes on from checkpoints on a claim; "
        f"'{program()} clone {name} --name NEW{location_flags()}' runs it beside.",
    )
