"""Rendering of a job into its list of objects, with the Secret of its run.

The Secret holds 256 random bits with which the launchers and the store of a run authenticate to one another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from ddp_trainer.common import constants
from ddp_trainer.common.constants import SECRET_KEY
from kubectl_ddp.code.archive import Code, code_parts
from kubectl_ddp.engines import DEFAULT_ENGINE, ENGINES, Engine, EngineKind
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import metadata, network, pod, pod_template
from kubectl_ddp.render.metadata import NATIVE_VERSIONS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import is_kueue_managed, starting_pod_count
from kubectl_ddp.spec.serialization import compact, digest, spec_to_dict

SECRET_BYTES: Final = 32

PLACEHOLDER: Final = "0" * 2 * SECRET_BYTES
"""Value in published manifests, for readers to replace."""

HASH_LENGTH: Final = 10
"""Hexadecimal digits of the run id's hash in the Secret's name. Run ids may contain characters that are invalid in
names.
"""

OWNER_READS: Final = 0o400
"""Mode of the file. The kubelet adds read permission for the pod's ``fsGroup``, which makes it 0440."""


def new_secret() -> str:
    """Return 256 random bits as 64 hexadecimal digits, after words by which logs and files are searched for it."""
    return f"ddprunsecret{secrets.token_hex(SECRET_BYTES)}"


def secret_name(job: str, run_id: str) -> str:
    """Return the name of a run's Secret. Two runs of one job have different names."""
    return f"{job}-run-{hashlib.sha256(run_id.encode()).hexdigest()[:HASH_LENGTH]}"


def secret_view(job: str, run_id: str, secret: str) -> dict[str, Any]:
    """Return the templates' part of a view.

    Args:
        job: Name of the job.
        run_id: Id of the run.
        secret: Secret of the run, from :func:`new_secret`.
    """
    name = secret_name(job, run_id)
    return {
        "secret_name": name,
        "secret_data": {SECRET_KEY: f"{run_id}:{secret}"},
        "secret_volume": {"name": SECRET_KEY, "secret": {"secretName": name, "defaultMode": OWNER_READS}},
    }


PLACEHOLDER_LENGTH: Final = 12
MOST_ANNOTATION_BYTES: Final = 240 << 10
"""Largest annotations of a new job. Kubernetes stores 256 KiB; results and moves of pods are added later."""

OF_DDP_LAUNCH: Final = ("secret.yaml.j2", "store-job.yaml.j2", "store-service.yaml.j2")
"""Templates of the objects without which torchrun does."""


class Site(StrEnum):
    """Place where the objects run."""

    CLUSTER = "cluster"
    LOCAL = "local"
    """This machine: scripts run in place, and Secrets come from exported variables."""


def placeholder_run_id(spec: JobSpec, code: Code | None = None) -> str:
    """Return a stable run id for objects that are only shown, equal for equal jobs."""
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
    native_version: str = NATIVE_VERSIONS[0],
) -> list[Object]:
    """Return the objects that run ``spec``, in a valid order for creation; ``job_kinds.root_of`` finds the root.

    Args:
        spec: The job.
        run_id: Id that is unique per submission and a valid label value. Run id and secret are the only differences
            between two submissions.
        site: Place where the objects run.
        code: Code to ship: the script if ``spec`` runs one on a cluster, or a directory.
        suspended: True if the root creates no pods until it is resumed.
        api_servers: Addresses of the cluster's API servers, which proxy our metric requests.
        run_secret: Secret of the run (random by default).
        native_version: Served version of Workload and PodGroup, for ``--gang native``.

    Raises:
        UsageError: If the job has more annotations than a cluster stores.
    """
    from kubectl_ddp.render.jinja_env import fill  # noqa: PLC0415 - Jinja2 and YAML, which help and completion do without

    engine = ENGINES[engine_of(spec, site)]
    # Kueue unsuspends the jobs in its queue; a job that is created unsuspended would be stopped immediately.
    view = _view(spec, run_id, code, engine, native_version) | {"suspended": suspended or is_kueue_managed(spec)}
    if site is Site.CLUSTER:
        _check_annotations(spec.name, view["root_metadata"]["annotations"])
    view |= pod.pod_view(spec, run_id, is_local=site is Site.LOCAL) | pod.volumes_view(
        spec, is_local=site is Site.LOCAL
    )
    view |= pod.launch_view(spec, run_id, engine, is_local=site is Site.LOCAL)
    view |= network.fabric_view(spec, is_local=site is Site.LOCAL)
    view |= pod.failures_view(spec, engine.container) | network.network_view(spec, api_servers)
    view |= secret_view(spec.name, run_id, run_secret or new_secret())
    pod_labels = view["selector"](constants.Role.WORKER) | {constants.Label.RUN_ID: run_id}
    view |= pod.placement_view(spec, pod_labels, view["node_labels"])
    view |= metadata.metadata_view(spec, view["labels"], view["gang"], view["fabric_annotations"])
    templates = [
        *([engine.runtime.file] if engine.runtime else []),
        engine.file,
        "secret.yaml.j2",
        *(["code.yaml.j2"] if code else []),
        *view["gang"].templates,
        *view["fabric_templates"],
        *(["nodes-service.yaml.j2"] if engine.has_subdomain else []),
        "store-job.yaml.j2",
        "store-service.yaml.j2",
        *(["rendezvous-service.yaml.j2"] if spec.uses_torchrun and engine.index_label else []),
        "network-policy.yaml.j2",
        *(["pod-monitor.yaml.j2"] if spec.has_metrics else []),
    ]
    if spec.uses_torchrun:
        templates = [file for file in templates if file not in OF_DDP_LAUNCH]
    parts = [view | {"part": part} for part in view["code_parts"]]
    objects = [fill(file, of) for file in templates for of in (parts if file == "code.yaml.j2" else [view])]
    if spec.pod_template and (site is Site.CLUSTER or pod_template.local_part(spec.pod_template)):
        _patch_pods(objects[0], engine, spec, site)
    return objects


def _patch_pods(holder: Object, engine: EngineKind, spec: JobSpec, site: Site) -> None:
    """Apply the job's patch to the pod template of its first object."""
    if site is Site.LOCAL:
        spec = dataclasses.replace(spec, pod_template=pod_template.local_part(spec.pod_template or {}))
    *path, last = engine.template
    parent = job_kinds.at(holder, tuple(path))
    parent[last] = pod_template.patched(parent[last], spec, engine.container)


def engine_of(spec: JobSpec, site: Site = Site.CLUSTER) -> Engine:
    """Return the engine whose objects run ``spec``; this machine supports only one kind."""
    return DEFAULT_ENGINE if site is Site.LOCAL or spec.engine is Engine.AUTO else spec.engine


def _check_annotations(job: str, annotations: Mapping[str, str]) -> None:
    size = sum(len(text.encode()) for entry in annotations.items() for text in entry)
    if size > MOST_ANNOTATION_BYTES:
        raise UsageError(
            f"The specification of job '{job}' has {size:,} bytes; a cluster stores at most {MOST_ANNOTATION_BYTES:,}.",
            hint="Move long values into a ConfigMap (--env-from configmap/NAME) or into the code of the job (--code).",
        )


def _view(spec: JobSpec, run_id: str, code: Code | None, engine: EngineKind, native_version: str) -> dict[str, Any]:
    """Return the template values about the job as a whole."""

    def selector(role: constants.Role | None = None) -> dict[str, str]:
        chosen: dict[str, str] = {constants.Label.JOB: spec.name}
        return chosen | ({constants.Label.ROLE: role} if role else {})

    def labels(role: constants.Role | None = None) -> dict[str, str]:
        return selector(role) | {constants.Label.RUN_ID: run_id, constants.Label.MANAGED_BY: constants.FIELD_MANAGER}

    gang_view = metadata.gang_scheduling_view(spec, engine.name, native_version)
    gang = gang_view["gang"]
    annotations = {
        constants.Annotation.DIGEST: digest(spec, code.text if code else ""),
        constants.Annotation.SPEC: compact(spec_to_dict(spec)),
    }
    namespace = {"namespace": spec.namespace} if spec.namespace else {}
    return gang_view | {
        "spec": spec,
        "starting_pods": starting_pod_count(spec),
        "run_id": run_id,
        "code": code,
        "namespace": namespace,
        "root_metadata": {
            "name": spec.name,
            **namespace,
            "labels": metadata.merge_metadata("labels", spec.labels, labels() | gang.labels),
            "annotations": metadata.merge_metadata("annotations", spec.annotations, annotations | gang.annotations),
        },
        "code_parts": code_parts(spec.name, code) if code else [],
        "set_metadata": None if gang.is_roots_alone else {"labels": gang.labels, "annotations": gang.annotations},
        "selector": selector,
        "labels": labels,
        "engine": engine,
        "path": constants.Path,
        "port": constants.Port,
        "port_name": constants.PortName,
        "role": constants.Role,
    }
