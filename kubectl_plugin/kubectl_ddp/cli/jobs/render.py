"""Commands that derive a job from given values or from another job: ``kubectl ddp render`` and ``clone``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ddp_trainer.common.constants import Env
from kubectl_ddp.cli.internal.command import Options, grouped_option, shared_options
from kubectl_ddp.cli.internal.job_lookup import target, warn_of_changed_script
from kubectl_ddp.cli.internal.job_options import (
    DRY_RUN,
    DRY_RUNS,
    JobRequest,
    ProgramCommand,
    change_options,
    job_options,
    prepare,
    warn,
)
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.util.text_table import Style, Table

if TYPE_CHECKING:
    from kubectl_ddp.client.submission import Prepared
    from kubectl_ddp.spec.job_key import Origin
    from kubectl_ddp.spec.model import JobSpec
    from kubectl_ddp.spec.resolve import Resolved


@click.command(cls=ProgramCommand)
@click.argument("job", required=False)
@click.option("--follow", is_flag=True, help="Print what all ranks write until the job ends, with progress on stderr.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="Wait until the job ends, showing progress; the exit code reports the result.",
)
@grouped_option("--timeout", is_common=False, metavar="TIME", help="Stop waiting after this time; the job continues.")
@click.option(DRY_RUN, type=click.Choice(DRY_RUNS), default="none", help="Create nothing, as with submit.")
@grouped_option("--preflight", is_common=False, type=click.Choice(("off", "warn", "strict")), help="As with submit.")
@change_options
@shared_options("json", "yaml", "name")
def clone(
    options: Options,
    request: JobRequest,
    job: str | None,
    *,
    follow: bool,
    waits: bool,
    timeout: str | None,
    dry_run: str,
    preflight: str | None,
) -> None:
    """Submit a job again under another --name, with its code and the changes that the flags make.

    Values that you set for the job are kept. Values derived from them are derived again: other --gpus give other
    defaults for cores and memory. Words after '--' replace the arguments of its program.
    """
    from kubectl_ddp.backends.job_recovery import code_of, recover_spec  # noqa: PLC0415
    from kubectl_ddp.cli.jobs.submit_run import SubmitOptions, submit_prepared  # noqa: PLC0415
    from kubectl_ddp.spec.resolve import minimal_layer, origin_from_job  # noqa: PLC0415

    backend, name = target(options, job)
    if request.flags.get("name") in {None, name}:
        raise UsageError(f"The clone of '{name}' needs another name.", hint="Set it with --name NEW.")
    origin = backend.job(name).job
    spec = recover_spec(origin)
    if backend.where == "local" and not request.flags.keys() & {"script", "code", "module", "command"}:
        warn_of_changed_script(options, origin)
    here = dataclasses.replace(options, local=backend.where == "local")
    code = None if request.flags.keys() & {"code", "codeClaim", "module", "command"} else code_of(backend, spec)
    prepared = prepare(here, request, under=minimal_layer(spec, origin_from_job(name)), code=code)
    claim = prepared.spec.checkpoint_claim
    if not here.local and claim is not None and claim == spec.checkpoint_claim:
        options.print_message(
            f"warning: It uses the checkpoint claim '{claim}' of job {name}, continues from the checkpoints there, and "
            "must not run at the same time. --checkpoint-claim names another."
        )
    submit_options = SubmitOptions(follow=follow, waits=waits, timeout=timeout, dry_run=dry_run, preflight=preflight)
    submit_prepared(prepared, here, submit_options)


@click.command(cls=ProgramCommand)
@click.option("--explain", is_flag=True, help="Print each value of the job and where it came from, instead.")
@job_options
@shared_options("yaml", "json")
def render(options: Options, request: JobRequest, *, explain: bool) -> None:
    """Print the objects that a job becomes, without contacting a cluster.

    The output is what 'kubectl apply -f -' takes. The run id is derived from the job, so it is the same each time; each
    submission gets a new one. The Secret is random each time: treat the output as a password.
    """
    from kubectl_ddp.spec.notes import spec_notes  # noqa: PLC0415
    from kubectl_ddp.status.job_tables import API_VERSION  # noqa: PLC0415
    from kubectl_ddp.util.yaml_text import to_json, to_yaml  # noqa: PLC0415

    prepared = prepare(options, request, shown=True)
    warn(prepared.resolved, options)
    if not explain:
        objects = prepared.objects(prepared.placeholder)
        _warn_of_environment(prepared, options)
        click.echo(to_json(objects) if options.output == "json" else to_yaml(objects), nl=False)
    elif options.output == "json":
        fields = [_as_json(key, value, origin) for key, value, origin in value_origins(prepared.resolved)]
        document = {
            "apiVersion": API_VERSION,
            "kind": "Explanation",
            "fields": fields,
            "notes": spec_notes(prepared.spec),
        }
        print_output(document, options.output)
    else:
        click.echo("\n".join([_table(prepared.resolved), *(f"\n{note}" for note in spec_notes(prepared.spec))]))


def _warn_of_environment(prepared: Prepared, options: Options) -> None:
    """Print warnings about the environment variables that result from flags and job file."""
    from kubectl_ddp.preflight.env_rules import environment_findings  # noqa: PLC0415 - not needed for help
    from kubectl_ddp.render import Site  # noqa: PLC0415

    for finding in environment_findings(prepared.spec, is_one_machine=prepared.site is Site.LOCAL):
        if finding.severity is not Severity.INFO:
            options.print_message(f"warning: {finding}")


def value_origins(resolved: Resolved) -> Iterator[tuple[str, Any, Origin]]:
    """Yield dotted key, value and origin of each value of a job."""
    from kubectl_ddp.spec import fabric  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.spec.serialization import spec_to_dict  # noqa: PLC0415

    document = spec_to_dict(resolved.spec)
    for key, origin in resolved.origins.items():
        head, _, entry = key.partition(".")
        value = document.get(head, "")
        yield key, value[entry] if entry and isinstance(value, dict) else value, origin
    yield from fabric.value_origins(resolved.spec)
    if not resolved.spec.uses_torchrun:
        yield _restart_in_place(resolved.spec)


def _restart_in_place(spec: JobSpec) -> tuple[str, str, Origin]:
    """Return key, value and origin of what restarts a launcher that crashes, on every engine."""
    from kubectl_ddp.spec.job_key import Origin, OriginKind  # noqa: PLC0415 - not needed for help and completion

    if spec.env.get(Env.RESTART_IN_PLACE, "1") == "1":
        why = "a crashed launcher or worker starts again in its pod, without back-off; its crash counts as a failure"
        return "restartInPlace", "resident parent process", Origin(OriginKind.RULE, "maxRestarts", why)
    why = "a launcher that crashes ends its pod, and the engine replaces the pod"
    return "restartInPlace", "off", Origin(OriginKind.RULE, f"env.{Env.RESTART_IN_PLACE}", why)


def _as_json(key: str, value: Any, origin: Origin) -> dict[str, Any]:
    return {"field": key, "value": value, "from": str(origin.kind), "place": origin.place, "reason": origin.reason}


def _table(resolved: Resolved) -> str:
    rows = [(key, _short(value), str(origin)) for key, value, origin in value_origins(resolved)]
    return Table.from_text(("FIELD", "VALUE", "FROM"), rows).render(Style())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
