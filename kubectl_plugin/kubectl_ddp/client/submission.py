"""Submission of a job: from its values to a job that can be rendered, its checks, and the creation of its objects."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import Where, check_place_of_new_job, is_local
from kubectl_ddp.code import pack, script_inside
from kubectl_ddp.code.script import (
    SHELLS,
    check_is_python,
    check_script,
    command_launcher_warnings,
    launcher_warnings,
    read_script,
    script_warnings,
)
from kubectl_ddp.engines import DEFAULT_ENGINE, Engine
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, PreflightFailed, UsageError
from kubectl_ddp.fabrics.catalog import NONE
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, RIGHTS, run_checks
from kubectl_ddp.render import Code, Site, render
from kubectl_ddp.render.choose import native_version, resolve_auto
from kubectl_ddp.render.metadata import NATIVE_VERSIONS
from kubectl_ddp.render.objects import placeholder_run_id
from kubectl_ddp.spec import fabric, rules
from kubectl_ddp.spec.external_values import IMAGE_VARIABLE
from kubectl_ddp.spec.fields import FIELDS
from kubectl_ddp.spec.job_key import Origin, OriginKind
from kubectl_ddp.spec.launcher_command import LAUNCHERS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import Resolved
from kubectl_ddp.spec.rules import in_clear
from kubectl_ddp.spec.trainer_arguments import object_store_url
from kubectl_ddp.util.finding import Finding, Severity, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.pod import VolumeSource
from kubectl_ddp.values.program import Command, Gang, Script
from kubectl_ddp.version import default_image

LOCAL_CLAIM: Final = "checkpoints"
"""Volume for the checkpoints of a local job: one directory for all its nodes."""


GPU_DRIVERS: Final = (Path("/proc/driver/nvidia/gpus"), Path("/dev/kfd"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Paths of which one exists on a machine with GPUs: NVIDIA's, AMD's, in a container, and on Windows."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Job with its place and its code."""

    resolved: Resolved
    where: Where
    site: Site
    code: Code | None
    api_servers: tuple[str, ...] = ()
    """Addresses from which the cluster's API servers read metrics."""
    native_version: str = NATIVE_VERSIONS[0]
    """Served version of Workload and PodGroup, for ``--gang native``."""

    @property
    def spec(self) -> JobSpec:
        """Job specification."""
        return self.resolved.spec

    @property
    def placeholder(self) -> str:
        """Run id for objects that are only printed."""
        return placeholder_run_id(self.spec, self.code)

    def resolve_engine(self, backend: Backend) -> Prepared:
        """Return the job with engine and gang resolved. The cluster is queried only if that is necessary.

        Raises PreflightFailed if no engine, or not the gang scheduler, is served.
        """
        is_mount_open = self.spec.runtime_image is not None and self.spec.runtime_mount is None
        is_open = is_mount_open or self.spec.engine is Engine.AUTO or self.spec.gang in {Gang.AUTO, Gang.NATIVE}
        facts = backend.facts() if is_open and self.site is Site.CLUSTER else None
        spec = dataclasses.replace(self.spec, egress=backend.effective_egress(self.spec.egress))
        resolved = dataclasses.replace(self.resolved, spec=spec)
        reached = dataclasses.replace(self, resolved=resolved, api_servers=backend.api_servers())
        if facts is None:
            return reached
        spec, origins = resolve_auto(spec, facts), dict(self.resolved.origins)
        found = Origin(OriginKind.RULE, facts.where, "the first that the cluster serves")
        chosen = {"engine": "engine", "gang": "gang", "runtimeMount": "runtime_mount"}
        origins |= {key: found for key, name in chosen.items() if getattr(spec, name) != getattr(self.spec, name)}
        resolved = dataclasses.replace(self.resolved, spec=spec, origins=origins)
        return dataclasses.replace(reached, resolved=resolved, native_version=native_version(spec, facts))

    def objects(self, run_id: str) -> list[Object]:
        """Render the objects of the job."""
        return render(
            self.spec,
            run_id,
            site=self.site,
            code=self.code,
            api_servers=self.api_servers,
            native_version=self.native_version,
        )


def prepare_job(resolved: Resolved, where: Where, *, shown: bool = False, packed_code: Code | None = None) -> Prepared:
    """Return a job with its place and its code, with its script checked. Raises UsageError or NotFound.

    Args:
        resolved: The job.
        where: Values of the flags that select the place. The namespace of the job is used on a cluster.
        shown: True if the objects are only printed; then a cluster is assumed unless ``--local`` is given.
        packed_code: Code of the job, if it was packed before.
    """
    where = dataclasses.replace(where.where, namespace=None if where.local else resolved.spec.namespace)
    site = Site.LOCAL if (where.local if shown else is_local(where)) else Site.CLUSTER
    if site is Site.LOCAL:
        resolved = _without_fabric(_with_shared_disk(resolved))
    else:
        _check_secrets(resolved.spec)
        warnings, notes = _image_warnings(resolved.spec), () if shown else _lost_files(resolved.spec)
        resolved = dataclasses.replace(
            resolved, warnings=(*resolved.warnings, *warnings), notes=(*resolved.notes, *notes)
        )
    code, spec = _with_code(resolved.spec, site, packed_code)
    if packed_code is None:
        resolved = dataclasses.replace(resolved, warnings=(*resolved.warnings, *program_warnings(spec)))
    if not shown:
        check_place_of_new_job(where)
    return Prepared(dataclasses.replace(resolved, spec=spec), where, site, code)


def prepare_object(resolved: Resolved, code: Code | None) -> Prepared:
    """Return the job of a DDPJob, whose code was sent before. No file is read. Raises UsageError."""
    _check_secrets(resolved.spec)
    return Prepared(resolved, Where(), Site.CLUSTER, code)


def _image_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for the image of ``make image``, whose name has no registry, so nodes cannot pull it."""
    if spec.image.startswith(f"{default_image().partition(':')[0]}:"):
        yield warning(
            f"No registry serves the image '{spec.image}': a node that does not have it cannot start the job.",
            f"Name an image of your registry with --image or ${IMAGE_VARIABLE}.",
        )


def _lost_files(spec: JobSpec) -> Iterator[str]:
    """Yield a note for a job without a place whose files outlive its pods."""
    has_claim = spec.checkpoint_claim is not None or any(mount.source is VolumeSource.CLAIM for mount in spec.mounts)
    if not has_claim and object_store_url(spec.args) is None:
        yield "Files of a pod are lost with it; --checkpoint-claim CLAIM keeps those in /checkpoints."


def program_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield warnings about the program, and about a script of this machine, whose path is relative to the code if a
    directory is sent.
    """
    launchers = LAUNCHERS - {"torchrun"} if spec.torchrun_shim else LAUNCHERS
    if isinstance(spec.program, Script) and spec.code_claim is None:
        script = Path(spec.code or "", spec.program.path)
        yield from script_warnings(script)
        yield from launcher_warnings(script, launchers)
    elif isinstance(spec.program, Command):
        yield from command_launcher_warnings(spec.program.words, launchers)
        scripts = (word for word in spec.program.words if PurePath(word).suffix in {".py", *SHELLS})
        for script in (Path(spec.code, word) for word in scripts if spec.code is not None):
            if script.is_file():
                yield from launcher_warnings(script, launchers)


def _check_secrets(spec: JobSpec) -> None:
    """Raise UsageError for a secret that would be readable in objects. Local jobs only get a warning."""
    for found in in_clear(spec):
        raise UsageError(
            found.message,
            hint=f"{found.hint} If it is not a secret, use a ConfigMap: --env-from configmap/NAME.",
        )


def _with_code(spec: JobSpec, site: Site, packed_code: Code | None) -> tuple[Code | None, JobSpec]:
    """Return the code to submit, and the job with the path of its script in that code. Raises UsageError."""
    program = spec.program
    if spec.code_claim is not None:
        if site is Site.LOCAL:
            raise UsageError(
                f"This machine has no claim '{spec.code_claim.claim}' with code.", hint="Send a directory: --code DIR."
            )
        return None, spec
    if spec.code is not None:
        if isinstance(program, Script) and packed_code is None:
            inside = script_inside(program.path, spec.code)
            check_is_python(Path(spec.code, inside))
            program = Script(inside)
        return packed_code or pack(spec.code), dataclasses.replace(spec, program=program)
    if not isinstance(program, Script):
        return None, spec
    if site is Site.LOCAL:
        return None, dataclasses.replace(spec, program=Script(str(check_script(program.path))))
    return packed_code or read_script(program.path), spec


def _with_shared_disk(resolved: Resolved) -> Resolved:
    """Add a checkpoint volume: the nodes of one machine share its disk, so checkpoints survive the loss of any node."""
    if resolved.spec.checkpoint_claim is not None:
        return resolved
    origin = Origin(OriginKind.RULE, "--local", "the nodes of one machine share its disk")
    return dataclasses.replace(
        resolved,
        spec=dataclasses.replace(resolved.spec, checkpoint_claim=LOCAL_CLAIM),
        origins={**resolved.origins, "checkpointClaim": origin},
    )


def _without_fabric(resolved: Resolved) -> Resolved:
    """Remove the settings of a fabric: one machine has no network between nodes, and the job would fail at its
    start.
    """
    spec, name = resolved.spec, resolved.spec.fabric
    if not fabric.has_entries(spec):
        return resolved
    others = {key: origin for key, origin in resolved.origins.items() if origin.kind is not OriginKind.FABRIC}
    defaults = _without_keys(spec, [key for key in resolved.origins if key not in others])
    bare = dataclasses.replace(spec, fabric=NONE, **defaults)
    origins = {**others, "fabric": Origin(OriginKind.RULE, "--local", "one machine has no network between its nodes")}
    ignored = warning(f"The fabric {name} is ignored with --local: one machine needs no network between nodes.")
    return dataclasses.replace(resolved, spec=bare, origins=origins, warnings=(*rules.warnings(bare), ignored))


def _without_keys(spec: JobSpec, keys: list[str]) -> dict[str, Any]:
    """Return the values of the attributes without these keys."""
    values: dict[str, Any] = {}
    for key in keys:
        head = key.partition(".")[0]
        attribute = FIELDS[head].attribute
        values[attribute] = JobSpec.__dataclass_fields__[attribute].default
        if FIELDS[head].is_map:
            dropped = {dotted.partition(".")[2] for dotted in keys if dotted.startswith(f"{head}.")}
            values[attribute] = {name: value for name, value in getattr(spec, attribute).items() if name not in dropped}
    return values


def check_local(spec: JobSpec, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a sentence for each part of a job that is ignored on this machine.

    Raises:
        PreflightFailed: If the job cannot run without such a part.
    """
    for name, entry in spec.secret_env.items():
        if name not in environ:
            raise PreflightFailed(
                f"{name} is kept in the Secret '{entry}', and this machine has no Secrets.",
                hint=f"Export {name} in this shell; a local job inherits it.",
            )
    return list(_left_out(spec))


def check_devices(spec: JobSpec) -> None:
    """Reject a job with GPUs on a machine without any, before its ranks start. Raises PreflightFailed."""
    if spec.gpus and not any(path.exists() for path in GPU_DRIVERS):
        raise PreflightFailed(
            f"Job '{spec.name}' requests {pluralize(spec.gpus, 'GPU')} on each node, and this machine has none.",
            hint="Add --gpus 0 --nproc 1 --nnodes 1 to try it on the CPU, or submit it to a cluster.",
        )


def _left_out(spec: JobSpec) -> Iterator[str]:
    for source in spec.env_from:
        yield f"The variables of {source} are not set: this machine has no such object. Export those you need."
    if spec.engine not in {Engine.AUTO, DEFAULT_ENGINE}:
        yield f"The engine {spec.engine} is ignored with --local."
    ignored = [key for key, field in FIELDS.items() if field.is_cluster_only and _is_set(spec, field.attribute)]
    if ignored:
        yield f"Ignored with --local, which has no cluster: {', '.join(ignored)}."
    if spec.pod_template is not None:
        yield "Of podTemplate only variables of the container 'worker' are set; the rest needs a cluster."
    if spec.mig is not None:
        yield "MIG slices need a cluster; this job sees all GPUs of the shell."


def _is_set(spec: JobSpec, attribute: str) -> bool:
    value = getattr(spec, attribute)
    return bool(value) and value != Gang.NONE


VARIABLE: Final = "KUBECTL_DDP_PREFLIGHT"
OFF, WARN, STRICT = "off", "warn", "strict"
LEVELS: Final = (OFF, WARN, STRICT)
REPORTED: Final = (Severity.WARNING, Severity.ERROR)


def check_before_submit(
    backend: Backend, prepared: Prepared, objects: Sequence[Object], level: str, warn: Callable[[str], None]
) -> None:
    """Pass warnings to ``warn`` before a job is created; with ``strict``, reject a job that cannot run.

    Raises PreflightFailed, Forbidden, and NotFound for the namespace. Other errors of the checks are warnings.
    """
    if level == OFF or prepared.site is Site.LOCAL:
        return
    spec = prepared.spec
    try:
        inputs = backend.preflight(spec, objects, is_thorough=False)
    except NotFound:
        raise
    except DdpError as error:
        warn(f"The checks of whether the job can run failed: {error.message}")
        return
    if inputs is None:
        return
    found = run_checks(OF_THE_CLUSTER, *inputs)
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    refuses = level == STRICT and bool(failed) and not _is_already_submitted(backend, spec.name, objects)
    for finding in found:
        # The refused request reports all missing rights together.
        if finding.severity in REPORTED and finding.subject != RIGHTS and not (refuses and finding is failed[0]):
            warn(str(finding))
    if refuses:
        raise finding_error(failed[0])


def finding_error(finding: Finding) -> DdpError:
    """Return the error for a check that failed."""
    if finding.subject == RIGHTS:
        return Forbidden(finding.message, hint=finding.hint)
    return PreflightFailed(finding.message, hint=f"{finding.hint} --preflight=warn submits it anyway.".strip())


def _is_already_submitted(backend: Backend, name: str, objects: Sequence[Object]) -> bool:
    """Return whether this very job was submitted before. Then submission creates nothing, and is not rejected."""
    from ddp_trainer.common.constants import Annotation  # noqa: PLC0415 - only after a denied request
    from kubectl_ddp.kube import job_kinds  # noqa: PLC0415

    try:
        existing = backend.job(name).job["metadata"].get("annotations") or {}
    except DdpError:
        return False
    annotations: Mapping[str, str] = job_kinds.root_of(list(objects))["metadata"]["annotations"]
    return existing.get(Annotation.DIGEST) == annotations[Annotation.DIGEST]


def level_of(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the level from the flag, else the variable, else ``strict``. Raises UsageError."""
    level = flag or environ.get(VARIABLE) or STRICT
    if level not in LEVELS:
        raise UsageError(f"{VARIABLE} is '{level}'.", hint=f"Set it to one of {', '.join(LEVELS)}, or unset it.")
    return level


def create_job(
    prepared: Prepared,
    backend: Backend,
    run_id: str,
    *,
    submitted: float,
    level: str,
    warn: Callable[[str], None],
    before_submit: Callable[[], None] = lambda: None,
) -> Prepared:
    """Create the objects of a job, and return the job with its engine resolved.

    Args:
        prepared: The job.
        backend: Place of the job.
        run_id: Id of the new run.
        submitted: Unix time of the submission, from which the start of the job is measured.
        level: What the checks before it reject: ``off``, ``warn`` or ``strict``.
        warn: Called with each warning of these checks.
        before_submit: Called after the checks, before the first object is created.

    Raises:
        PreflightFailed: If the job cannot run there.
        AlreadyExists: If another object has the name.
    """
    if prepared.site is Site.LOCAL:
        check_devices(prepared.spec)
    prepared = prepared.resolve_engine(backend)
    objects = prepared.objects(run_id)
    job_kinds.root_of(objects)["metadata"]["annotations"][Annotation.SUBMITTED] = f"{submitted:.3f}"
    check_before_submit(backend, prepared, objects, level, warn)
    before_submit()
    backend.submit(objects)
    return prepared
