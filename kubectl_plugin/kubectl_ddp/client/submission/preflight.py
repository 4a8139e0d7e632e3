"""Checks of a job in a cluster before it is created, and the level that decides what they reject."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.client.submission.prepared_job import Prepared
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, PreflightFailed, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, RIGHTS, run_checks
from kubectl_ddp.render import Site
from kubectl_ddp.util.finding import Finding, Severity

VARIABLE: Final = "KUBECTL_DDP_PREFLIGHT"
OFF, WARN, STRICT = "off", "warn", "strict"
LEVELS: Final = (OFF, WARN, STRICT)
GRAVE: Final = (Severity.WARNING, Severity.ERROR)


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
        told = backend.preflight(spec, objects, is_thorough=False)
    except NotFound:
        raise
    except DdpError as error:
        warn(f"Whether the job can run was not found out: {error.message}")
        return
    if told is None:
        return
    found = run_checks(OF_THE_CLUSTER, *told)
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    refuses = level == STRICT and bool(failed) and not _is_already_submitted(backend, spec.name, objects)
    for finding in found:
        # The refused request reports all missing rights together.
        if finding.severity in GRAVE and finding.subject != RIGHTS and not (refuses and finding is failed[0]):
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
        there = backend.job(name).job["metadata"].get("annotations") or {}
    except DdpError:
        return False
    mine: Mapping[str, str] = job_kinds.root_of(list(objects))["metadata"]["annotations"]
    return there.get(Annotation.DIGEST) == mine[Annotation.DIGEST]


def level_of(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the level from the flag, else the variable, else ``strict``. Raises UsageError."""
    level = flag or environ.get(VARIABLE) or STRICT
    if level not in LEVELS:
        raise UsageError(f"{VARIABLE} is '{level}'.", hint=f"Set it to one of {', '.join(LEVELS)}, or unset it.")
    return level
