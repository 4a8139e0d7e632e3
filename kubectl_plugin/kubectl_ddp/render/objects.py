"""The list of objects that a job becomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ddp_trainer import contract
from kubectl_ddp.backend import Object
from kubectl_ddp.render import pod
from kubectl_ddp.render.engines import pytorchjob
from kubectl_ddp.spec.document import compact, digest, to_document
from kubectl_ddp.spec.model import JobSpec

PLACEHOLDER_LENGTH: Final = 12


class Site(StrEnum):
    """Where the objects will run."""

    CLUSTER = "cluster"
    LOCAL = "local"
    """This machine: scripts run where they lie, and Secrets are what the shell exports."""


@dataclass(frozen=True, slots=True)
class Code:
    """A script that travels with the job."""

    file: str
    """Its name, without directories."""
    text: str


def placeholder_run_id(spec: JobSpec, code: Code | None = None) -> str:
    """A run id for objects that are only shown: stable, and the same for the same job."""
    return digest(spec, code.text if code else "")[:PLACEHOLDER_LENGTH]


def render(spec: JobSpec, run_id: str, *, site: Site = Site.CLUSTER, code: Code | None = None) -> list[Object]:
    """The objects that run ``spec``, the root first.

    Args:
        spec: the job.
        run_id: unique per submission, a valid label value; the only thing that differs between two submissions.
        site: where they will run.
        code: the script that travels along, when ``spec`` runs one and the site is a cluster.
    """
    from kubectl_ddp.render.templating import fill  # noqa: PLC0415 - Jinja2 and YAML, which help and completion do without

    view = _view(spec, run_id, code) | pod.view(spec, run_id, is_local=site is Site.LOCAL) | pytorchjob.view(spec)
    templates = [
        pytorchjob.TEMPLATE,
        *(["code.yaml.j2"] if code else []),
        "store-job.yaml.j2",
        "store-service.yaml.j2",
        "network-policy.yaml.j2",
        "pod-monitor.yaml.j2",
    ]
    return [fill(template, view) for template in templates]


def _view(spec: JobSpec, run_id: str, code: Code | None) -> dict[str, Any]:
    """What templates may say about the job as a whole."""

    def selector(role: contract.Role | None = None) -> dict[str, str]:
        chosen: dict[str, str] = {contract.Label.JOB: spec.name}
        return chosen | ({contract.Label.ROLE: role} if role else {})

    def labels(role: contract.Role | None = None) -> dict[str, str]:
        return selector(role) | {contract.Label.RUN_ID: run_id, contract.Label.MANAGED_BY: contract.FIELD_MANAGER}

    return {
        "spec": spec,
        "run_id": run_id,
        "code": code,
        "closed": spec.egress == "closed",
        "namespace": {"namespace": spec.namespace} if spec.namespace else {},
        "names": pod.names(spec),
        "selector": selector,
        "labels": labels,
        "digest": digest(spec, code.text if code else ""),
        "document": compact(to_document(spec)),
        "annotation": contract.Annotation,
        "container": contract.CONTAINER,
        "path": contract.Path,
        "port": contract.Port,
        "port_name": contract.PortName,
        "role": contract.Role,
    }
