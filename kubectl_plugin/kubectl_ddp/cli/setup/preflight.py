"""Commands about room for a job: ``kubectl ddp preflight`` and ``capacity``."""

from __future__ import annotations

import click

from kubectl_ddp.backends.select import backend_for
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_options import JobRequest, ProgramCommand, job_options, prepare, print_notes
from kubectl_ddp.cli.internal.output import fail_on_errors, print_findings, print_output, style
from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.finding import Severity, most_severe


@click.command(cls=HelpfulCommand)
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option("--queue", metavar="NAME", help="Only this LocalQueue.")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None) -> None:
    """Show free capacity by node, type of GPU and queue.

    Objects that you may not read are reported and skipped. In a cluster, free is what pods do not request; on this
    machine, what programs do not use.
    """
    from kubectl_ddp.capacity import capacity_to_dict, report_capacity, tables  # noqa: PLC0415 - not needed for help

    backend = backend_for(options)
    report = report_capacity(backend.where, backend.inventory(), gpu_type=gpu_type, queue=queue)
    if options.output is not None:
        print_output(capacity_to_dict(report), options.output)
        return
    form = style(options)
    click.echo("\n\n".join(table.render(form) for table in tables(report)))
    for reason in report.unread:
        options.print_message(f"warning: {reason}")


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well, such as a quota that is used up.")
@job_options
@shared_options("json", "yaml")
def preflight(options: Options, request: JobRequest, *, strict: bool) -> None:
    """Check whether a job can run in the cluster; changes nothing.

    Takes what submit takes. Checks the resources of the nodes, Kueue, quotas, volumes, Secrets, rights, and admission.
    Exit code 4 means that the job cannot run there, 5 that you may not submit it.
    """
    from kubectl_ddp.client.submission.preflight import finding_error  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.client.submission.prepared_job import program_warnings  # noqa: PLC0415
    from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, OF_THE_JOB, RIGHTS, run_checks  # noqa: PLC0415
    from kubectl_ddp.render import Site  # noqa: PLC0415

    prepared = prepare(options, request)
    if prepared.site is Site.LOCAL:
        raise UsageError(
            "Preflight asks a cluster, and this job would run here.", hint="'ddp-launch preflight' looks at a machine."
        )
    backend = backend_for(prepared.where)
    prepared = prepared.resolve_engine(backend)
    spec = prepared.spec
    inputs = backend.preflight(spec, prepared.objects(prepared.placeholder), is_thorough=True)
    assert inputs is not None  # noqa: S101 - never None for a cluster
    print_notes(prepared.resolved, options)
    found = [*program_warnings(spec), *run_checks([*OF_THE_JOB, *OF_THE_CLUSTER], *inputs)]
    print_findings(
        options,
        "Preflight",
        found,
        job=spec.name,
        where=backend.where,
        namespace=inputs[0].namespace,
        verdict=str(most_severe([finding for finding in found if finding.severity is not Severity.INFO])),
    )
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    if failed and all(finding.subject == RIGHTS for finding in failed):
        raise finding_error(failed[0])
    fail_on_errors(f"Job '{spec.name}'", found, is_strict=strict)
