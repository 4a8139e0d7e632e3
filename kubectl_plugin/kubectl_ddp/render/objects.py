"""The list of objects that a job becomes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from ddp_trainer.common import constants
from kubectl_ddp.backend import Object
from kubectl_ddp.render import fabric, failures, gang_scheduling, network, placement, pod, secret, volumes
from kubectl_ddp.render.code import Code, name_of
from kubectl_ddp.render.engines import RENDERINGS
from kubectl_ddp.spec.engine import Engine
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.queues import is_kueue_managed
from kubectl_ddp.spec.serialization import compact, digest, spec_to_dict

PLACEHOLDER_LENGTH: Final = 12
DEFAULT_ENGINE: Final = Engine.PYTORCHJOB
"""Where nobody was asked what a cluster serves, and for this machine, which interprets this kind."""


class Site(StrEnum):
    """Where the objects will run."""

    CLUSTER = "cluster"
    LOCAL = "local"
    """This machine: scripts run where they lie, and Secrets are what the shell exports."""


def placeholder_run_id(spec: JobSpec, code: Code | None = None) -> str:
    """A run id for objects that are only shown: stable, and the same for the same job."""
    return digest(spec, code.text if code else "")[:PLACEHOLDER_LENGTH]


def render(
    spec: JobSpec,
    run_id: str,
    *,
    site: Site = Site.CLUSTER,
    code: Code | None = None,
    suspended: bool = False,
    api_servers: Sequence[str] = (),
    run_secret: str | None = None,
) -> list[Object]:
    """The objects that run ``spec``, in an order in which an API server takes them; ``roots.root_of`` finds the root.

    Args:
        spec: the job.
        run_id: unique per submission, a valid label value; with the secret the only thing that differs between two
            submissions.
        site: where they will run.
        code: what travels along: the script, when ``spec`` runs one and the site is a cluster, or a directory.
        suspended: whether the root holds its pods back until it is resumed.
        api_servers: addresses of the cluster's API servers, which read metrics for us.
        run_secret: 64 hexadecimal digits for the Secret of the run (random).
    """
    from kubectl_ddp.render.jinja_env import fill  # noqa: PLC0415 - Jinja2 and YAML, which help and completion do without

    engine = engine_of(spec, site)
    rendering = RENDERINGS[engine]
    # What waits in Kueue's queue is let go by Kueue; one that begins unsuspended would be stopped at once.
    view = _view(spec, run_id, code, engine) | {
        "rendering": rendering,
        "suspended": suspended or is_kueue_managed(spec),
    }
    view |= pod.view(spec, run_id, is_local=site is Site.LOCAL) | volumes.view(spec)
    view |= fabric.view(spec, is_local=site is Site.LOCAL)
    view |= failures.view(spec, rendering.container) | network.view(spec, api_servers)
    view |= secret.view(spec.name, run_id, run_secret or secret.new_secret())
    mine = view["selector"](constants.Role.WORKER) | {constants.Label.RUN_ID: run_id}
    view |= placement.view(spec, mine, view["node_labels"])
    group = view["together"].template
    templates = [
        *rendering.before,
        rendering.template,
        "secret.yaml.j2",
        *(["code.yaml.j2"] if code else []),
        *([group] if group else []),
        *view["fabric_templates"],
        *rendering.beside,
        "store-job.yaml.j2",
        "store-service.yaml.j2",
        "network-policy.yaml.j2",
        "pod-monitor.yaml.j2",
    ]
    return [fill(template, view) for template in templates]


def engine_of(spec: JobSpec, site: Site = Site.CLUSTER) -> Engine:
    """The engine whose objects run ``spec``: this machine interprets one kind only."""
    return DEFAULT_ENGINE if site is Site.LOCAL or spec.engine is Engine.AUTO else spec.engine


def _view(spec: JobSpec, run_id: str, code: Code | None, engine: Engine) -> dict[str, Any]:
    """What templates may say about the job as a whole."""

    def selector(role: constants.Role | None = None) -> dict[str, str]:
        chosen: dict[str, str] = {constants.Label.JOB: spec.name}
        return chosen | ({constants.Label.ROLE: role} if role else {})

    def labels(role: constants.Role | None = None) -> dict[str, str]:
        return selector(role) | {constants.Label.RUN_ID: run_id, constants.Label.MANAGED_BY: constants.FIELD_MANAGER}

    gang = gang_scheduling.view(spec, engine)
    together = gang["together"]
    annotations = {
        constants.Annotation.DIGEST: digest(spec, code.text if code else ""),
        constants.Annotation.SPEC: compact(spec_to_dict(spec)),
    }
    namespace = {"namespace": spec.namespace} if spec.namespace else {}
    return gang | {
        "spec": spec,
        "run_id": run_id,
        "code": code,
        "namespace": namespace,
        "root_metadata": {
            "name": spec.name,
            **namespace,
            "labels": labels() | together.labels,
            "annotations": annotations | together.annotations,
        },
        "names": {**pod.names(spec), "code": name_of(spec.name, code)},
        "set_metadata": None
        if together.is_roots_alone
        else {"labels": together.labels, "annotations": together.annotations},
        "selector": selector,
        "labels": labels,
        "container": RENDERINGS[engine].container,
        "path": constants.Path,
        "port": constants.Port,
        "port_name": constants.PortName,
        "role": constants.Role,
    }
