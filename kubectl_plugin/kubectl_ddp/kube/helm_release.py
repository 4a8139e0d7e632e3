"""Jobs that belong to a Helm release of ``charts/ddp-job``: deleting the root object alone leaves the other objects."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.invocation import location_flags, program

NAME: Final = "meta.helm.sh/release-name"
NAMESPACE: Final = "meta.helm.sh/release-namespace"
"""Annotations that Helm sets on the objects of a release."""


def helm_uninstall_command(job: Object) -> str | None:
    """Return the command that uninstalls the release of a job; ``None`` if Helm did not create the job."""
    annotations = job["metadata"].get("annotations") or {}
    if NAME not in annotations:
        return None
    return f"helm uninstall {annotations[NAME]} -n {annotations.get(NAMESPACE, job['metadata'].get('namespace', ''))}"


def helm_deletion_warning(job: Object) -> str | None:
    """Return the warning for deleting only the root object of a job; ``None`` if the job has no release."""
    command = helm_uninstall_command(job)
    if command is None:
        return None
    name = job["metadata"]["name"]
    return f"Helm has made job {name}: its store, Services and NetworkPolicy stay until '{command}' takes them away."


def reject_helm_managed(job: Object) -> None:
    """Raise UsageError if the job belongs to a Helm release, whose store has ended and cannot serve a new run."""
    command = helm_uninstall_command(job)
    if command is None:
        return
    name = job["metadata"]["name"]
    raise UsageError(
        f"Job '{name}' has failed and belongs to a Helm release: a new run would not be part of the release.",
        hint=f"'{command}' and 'helm install' create it again, and it continues from checkpoints on a claim; "
        f"'{program()} clone {name} --name NEW{location_flags()}' runs a copy beside it.",
    )
