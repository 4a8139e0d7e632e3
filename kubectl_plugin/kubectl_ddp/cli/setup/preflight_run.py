"""Implementation of ``preflight``: checks of a job in a cluster."""

from __future__ import annotations

from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.job_options import JobRequest, prepare, print_notes
from kubectl_ddp.cli.internal.output import fail_on_errors, print_findings
from kubectl_ddp.client.submission.preflight import finding_error
from kubectl_ddp.client.submission.prepared_job import program_warnings
from kubectl_ddp.errors import UsageError
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, OF_THE_JOB, RIGHTS, run_checks
from kubectl_ddp.render import Site
from kubectl_ddp.util.finding import Severity, most_severe


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
    print_notes(prepared.resolved, options)
    found = [*program_warnings(spec), *run_checks([*OF_THE_JOB, *OF_THE_CLUSTER], *told)]
    print_findings(
        options,
        "Preflight",
        found,
        job=spec.name,
        where=backend.where,
        namespace=told[0].namespace,
        verdict=str(most_severe([each for each in found if each.severity is not Severity.INFO])),
    )
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    if failed and all(finding.subject == RIGHTS for finding in failed):
        raise finding_error(failed[0])
    fail_on_errors(f"Job '{spec.name}'", found, is_strict=is_strict)
