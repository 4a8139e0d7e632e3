"""Implementation of ``preflight``, also used by ``submit`` before it creates objects: checks of a job in a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.cli.internal.finding_output import fail_on_errors, print_findings
from kubectl_ddp.cli.internal.job_builder import Prepared, prepare
from kubectl_ddp.cli.internal.job_options import JobRequest
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, PreflightFailed, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, OF_THE_JOB, RIGHTS, run_checks
from kubectl_ddp.render import Site
from kubectl_ddp.util.finding import Finding, Severity, most_severe

VARIABLE: Final = "KUBECTL_DDP_PREFLIGHT"
OFF, WARN, STRICT = "off", "warn", "strict"
LEVELS: Final = (OFF, WARN, STRICT)
GRAVE: Final = (Severity.WARNING, Severity.ERROR)


def inspect_job(options: Options, request: JobRequest, *, is_strict: bool) -> None:
    """Print the findings of all checks. Raises PreflightFailed, or Forbidden if only rights are missing."""
    prepared = prepare(options, request)
    if prepared.site is Site.LOCAL:
        raise UsageError(
            "Preflight asks a cluster, and this job would run here.", hint="'ddp-launch preflight' looks at a machine."
        )
    backend = backend_for(prepared.where)
    prepared = prepared.resolve_engine(backend)
    spec = prepared.spec
    told = backend.preflight(spec, prepared.objects(prepared.placeholder), is_thorough=True)
    assert told is not None  # noqa: S101 - never None for a cluster
    found = run_checks([*OF_THE_JOB, *OF_THE_CLUSTER], *told)
    print_findings(
        options,
        "Preflight",
        found,
        job=spec.name,
        where=backend.where,
        namespace=told[0].namespace,
        verdict=str(most_severe(found)),
    )
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    if failed and all(finding.subject == RIGHTS for finding in failed):
        raise _finding_error(failed[0])
    fail_on_errors(f"Job '{spec.name}'", found, is_strict=is_strict)


def check_before_submit(
    backend: Backend, prepared: Prepared, objects: Sequence[Object], options: Options, level: str
) -> None:
    """Print warnings before a job is created; with ``strict``, reject a job that cannot run.

    Raises PreflightFailed, Forbidden, and NotFound for the namespace. Other errors of the checks are printed as
    warnings.
    """
    if level == OFF or prepared.site is Site.LOCAL:
        return
    spec = prepared.spec
    try:
        told = backend.preflight(spec, objects, is_thorough=False)
    except NotFound:
        raise
    except DdpError as error:
        options.print_message(f"warning: Whether the job can run was not found out: {error.message}")
        return
    if told is None:
        return
    found = run_checks(OF_THE_CLUSTER, *told)
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    refuses = level == STRICT and bool(failed) and not _is_already_submitted(backend, spec.name, objects)
    for finding in found:
        # The refused request reports all missing rights together.
        if finding.severity in GRAVE and finding.subject != RIGHTS and not (refuses and finding is failed[0]):
            options.print_message(f"warning: {finding}")
    if refuses:
        raise _finding_error(failed[0])


def _finding_error(finding: Finding) -> DdpError:
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
