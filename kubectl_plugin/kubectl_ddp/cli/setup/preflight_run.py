"""Implementation of ``preflight``, also used by ``submit`` before it creates objects: checks of a job in a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.cli.internal.job_builder import Prepared, prepare
from kubectl_ddp.cli.internal.job_lookup import print_output, style
from kubectl_ddp.cli.internal.job_options import JobRequest
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, PreflightFailed, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, OF_THE_JOB, run_checks
from kubectl_ddp.preflight.model import Finding, Status, most_severe
from kubectl_ddp.preflight.server import RIGHTS
from kubectl_ddp.render import Site
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import Style

VARIABLE: Final = "KUBECTL_DDP_PREFLIGHT"
OFF, WARN, STRICT = "off", "warn", "strict"
LEVELS: Final = (OFF, WARN, STRICT)
COLORS: Final = {Status.OK: "green", Status.SKIP: "dim", Status.WARN: "yellow", Status.FAIL: "red"}
GRAVE: Final = (Status.WARN, Status.FAIL)


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
    if options.output is not None:
        print_output(findings_to_dict(spec, backend.where, told[0].namespace, found), options.output)
    else:
        click.echo("\n".join(lines(found, style(options))))
    _raise_on_failures(spec, found, is_strict=is_strict)


def _raise_on_failures(spec: JobSpec, found: Sequence[Finding], *, is_strict: bool) -> None:
    failed = [finding for finding in found if finding.status is Status.FAIL]
    grave = [finding for finding in found if finding.status in (GRAVE if is_strict else (Status.FAIL,))]
    if failed and all(finding.check == RIGHTS for finding in failed):
        raise Forbidden(failed[0].message, hint=failed[0].hint)
    if grave:
        count = f"{len(grave)} thing{'s' * (len(grave) != 1)}"
        raise PreflightFailed(f"Job '{spec.name}' does not pass: {count} to mend.", hint="Each line says what to do.")


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
    failed = [finding for finding in found if finding.status is Status.FAIL]
    refuses = level == STRICT and bool(failed) and not _is_already_submitted(backend, spec.name, objects)
    for finding in found:
        # The refused request reports all missing rights together.
        if finding.status in GRAVE and finding.check != RIGHTS and not (refuses and finding is failed[0]):
            options.print_message(f"warning: {finding}")
    if refuses:
        raise _finding_error(failed[0])


def _finding_error(finding: Finding) -> DdpError:
    if finding.check == RIGHTS:
        return Forbidden(finding.message, hint=finding.hint)
    return PreflightFailed(finding.message, hint=f"{finding.hint} --preflight=warn submits it all the same.".strip())


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


def lines(found: Sequence[Finding], look: Style) -> list[str]:
    """Format the findings, one line each, with the hint below."""
    width = max((len(finding.check) for finding in found), default=0)
    told = []
    for finding in found:
        word = look.apply_color(finding.status.upper().ljust(4), COLORS[finding.status])
        told.append(f"{word}  {finding.check.ljust(width)}  {finding.message}")
        if finding.hint and finding.status is not Status.OK:
            told += [f"      {' ' * width}  {line}" for line in finding.hint.splitlines()]
    return told


def findings_to_dict(spec: JobSpec, where: str, namespace: str, found: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as JSON."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Preflight",
        "job": spec.name,
        "where": where,
        "namespace": namespace,
        "verdict": str(most_severe(found)),
        "findings": [asdict(finding) | {"status": str(finding.status)} for finding in found],
    }
