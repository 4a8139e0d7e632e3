"""``kubectl ddp submit``."""

from __future__ import annotations

import secrets
from typing import Any, Final

import click

from ddp_trainer.contract import Label
from kubectl_ddp.backend import Backend, Object
from kubectl_ddp.backends import backend_for
from kubectl_ddp.cli.job_options import DRY_RUN, DRY_RUNS, JobRequest, ProgramCommand, job_options, warn
from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.cli.prepare import Prepared, check_local, prepare
from kubectl_ddp.cli.stay import stay
from kubectl_ddp.cli.target import RESOURCE, print_document, seconds_of
from kubectl_ddp.document import API_VERSION
from kubectl_ddp.errors import UsageError
from kubectl_ddp.program import program
from kubectl_ddp.render import Site
from kubectl_ddp.spec.document import digest

LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' own alphabet for made-up endings: no vowels, so no words."""


@click.command(cls=ProgramCommand)
@click.option("--follow", is_flag=True, help="Print what all ranks write until the job ends.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the end; the exit code says how the job ended.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time; the job goes on.")
@click.option(
    DRY_RUN,
    type=click.Choice(DRY_RUNS),
    default="none",
    help="Create nothing: 'client' only renders, 'server' lets the API server check.",
)
@job_options
@shared_options("json", "yaml", "name")
def submit(
    options: Options, request: JobRequest, *, follow: bool, waits: bool, timeout: str | None, dry_run: str
) -> None:
    """Run SCRIPT, a module or a job file: on a cluster, or on this machine with --local.

    Words after '--' are arguments of the program. The job goes on when this command has ended.
    """
    seconds = _patience(timeout, stays=follow or waits)
    prepared = prepare(options, request, name_suffix=_ending(), shown=dry_run == "client")
    left_out = check_local(prepared.spec) if prepared.site is Site.LOCAL else []
    warn(prepared.resolved, options, left_out)
    if dry_run != "none":
        _dry_run(prepared, options, on_server=dry_run == "server")
        return
    backend = backend_for(prepared.where)
    run_id = secrets.token_hex(6)
    backend.submit(prepared.objects(run_id))
    submission = _submission(prepared, backend, run_id)
    _announce(submission, options, is_last=not (follow or waits))
    if follow or waits:
        stay(backend, submission, options, follows=follow, timeout=seconds)


def _patience(timeout: str | None, *, stays: bool) -> float | None:
    if timeout is not None and not stays:
        raise UsageError(f"--timeout {timeout} limits nothing.", hint="Add --wait or --follow.")
    return seconds_of("--timeout", timeout)


def _ending() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(5))


def _dry_run(prepared: Prepared, options: Options, *, on_server: bool) -> None:
    from kubectl_ddp.render.text import to_json, to_yaml  # noqa: PLC0415 - YAML, which help does without

    objects = prepared.objects(prepared.placeholder)
    if on_server:
        objects = _checked_by_server(prepared, objects)
    if options.output in {"json", "yaml"}:
        click.echo(to_json(objects) if options.output == "json" else to_yaml(objects), nl=False)
        return
    suffix = "" if options.output == "name" else f" created ({'server ' if on_server else ''}dry run)"
    for item in objects:
        click.echo(f"{_resource(item)}/{item['metadata']['name']}{suffix}")


def _checked_by_server(prepared: Prepared, objects: list[Object]) -> list[Object]:
    if prepared.site is Site.LOCAL:
        raise UsageError("--dry-run=server asks a cluster, and this job would run here.", hint="Use --dry-run=client.")
    from kubectl_ddp.cluster import ClusterBackend  # noqa: PLC0415 - imports the Kubernetes client

    where = prepared.where
    backend = ClusterBackend(context=where.context, kubeconfig=where.kubeconfig, namespace=where.namespace)
    return backend.dry_run(objects)


def _resource(item: Object) -> str:
    """The resource as kubectl prints it, as in ``pytorchjob.kubeflow.org``."""
    group = item["apiVersion"].rpartition("/")[0]
    kind: str = item["kind"].lower()
    return f"{kind}.{group}" if group else kind


def _submission(prepared: Prepared, backend: Backend, run_id: str) -> dict[str, Any]:
    """What came of it; submitting the same job again changes nothing, and then the run is the one before."""
    spec = prepared.spec
    metadata = backend.job(spec.name).job["metadata"]
    found = metadata["labels"][Label.RUN_ID]
    return {
        "apiVersion": API_VERSION,
        "kind": "Submission",
        "name": spec.name,
        "namespace": metadata.get("namespace"),
        "where": backend.where,
        "runId": found,
        "created": found == run_id,
        "digest": digest(spec, prepared.code.text if prepared.code else ""),
    }


def _announce(submission: dict[str, Any], options: Options, *, is_last: bool) -> None:
    """Say what was made, and what to type next; data comes once, when there is no more to come."""
    name, where = submission["name"], submission["where"]
    if options.output == "name":
        click.echo(f"{RESOURCE}/{name}")
    elif options.output is not None and is_last:
        print_document(submission, options.output)
    did = "created" if submission["created"] else "was there already, unchanged,"
    place = "on this machine" if where == "local" else f"in {where}"
    options.note(f"Job {name} {did} {place}, run {submission['runId']}.")
    if is_last:
        called = program()
        options.note(
            f"  {called} status {name} --ranks   how it goes\n  {called} logs {name} -f          what it writes"
        )
