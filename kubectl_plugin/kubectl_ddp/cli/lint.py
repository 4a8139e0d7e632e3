"""``kubectl ddp lint``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kubectl_ddp.cli.job_options import JobRequest, ProgramCommand, job_options, read_job
from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.errors import PreflightFailed, UsageError

if TYPE_CHECKING:
    from ddp_trainer.lint.model import Facts, Finding
    from kubectl_ddp.spec.model import JobSpec


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail for warnings too.")
@click.option(
    "--ignore", "ignored", metavar="RULES", default="", help="Rules to leave out, with commas, as in N03,T01."
)
@job_options
@shared_options("json")
def lint(options: Options, request: JobRequest, *, strict: bool, ignored: str) -> None:
    """Say what is doubtful in the environment that a job gives NCCL and torch; asks no cluster.

    Takes what submit takes, and looks at the variables of the job file and the flags. Where the job starts, its
    launcher applies the same rules again, and those that need the node.
    """
    from ddp_trainer.contract import Env  # noqa: PLC0415 - help and completion do without these
    from ddp_trainer.lint.catalogue import check, unknown_ids  # noqa: PLC0415

    if unknown := unknown_ids(ignored):
        raise UsageError(f"--ignore names '{unknown[0]}', which is no rule.", hint="Rules are listed in docs/lint.md.")
    spec = read_job(request, options).spec
    left_out = ",".join(filter(None, (ignored, spec.env.get(Env.LINT_IGNORE, ""))))
    found = check(spec.env, facts_of(spec), left_out)
    unseen = [*spec.secret_env, *map(str, spec.env_from)]
    if unseen:
        options.note(f"warning: The values of {', '.join(unseen)} are kept in the cluster, and were not looked at.")
    _show(options, spec.name, found)
    counts = {severity: count for severity, count in _counts(found).items() if severity != "info"}
    if counts.get("error") or (strict and counts):
        said = " and ".join(f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items())
        raise PreflightFailed(f"The environment of {spec.name} has {said}.", hint="Each line says what to do.")


def facts_of(spec: JobSpec) -> Facts:
    """What a job says of the nodes that it will have."""
    from ddp_trainer.lint.model import Facts  # noqa: PLC0415 - help and completion do without

    return Facts(nodes=spec.nnodes.maximum, nproc=spec.nproc, gpus=spec.gpus, cpus=spec.cpu.millis / 1000)


def _show(options: Options, job: str, found: Sequence[Finding]) -> None:
    if options.output == "json":
        from kubectl_ddp.document import API_VERSION  # noqa: PLC0415 - help and completion do without

        document: Mapping[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "Lint",
            "job": job,
            "findings": [asdict(finding) for finding in found],
            "counts": _counts(found),
        }
        click.echo(json.dumps(document, indent=2))
        return
    for finding in found:
        click.echo(str(finding))
        click.echo(f"    {finding.source}")
    if not found:
        options.note("Nothing is doubtful.")


def _counts(found: Sequence[Finding]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in found:
        counts[str(finding.severity)] = counts.get(str(finding.severity), 0) + 1
    return counts
