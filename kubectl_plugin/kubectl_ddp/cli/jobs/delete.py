"""Command ``kubectl ddp delete``."""

from __future__ import annotations

import sys

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.local.paths import local_job_names
from kubectl_ddp.backends.select import backend_to_change, target_backends
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import parse_job_name, place_of
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import Cancelled, DdpError, Interrupted, UsageError
from kubectl_ddp.kube.job_kinds import submitted_spec
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods, object_store_url
from kubectl_ddp.status.job_state import WITH_RANKS, job_state
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import pluralize


@click.command(cls=HelpfulCommand)
@click.argument("jobs", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete every job of the namespace, or of this machine.")
@click.option("-y", "--yes", is_flag=True, help="Delete without confirmation.")
@shared_options("json", "yaml", "name")
def delete(options: Options, jobs: tuple[str, ...], *, everything: bool, yes: bool) -> None:
    """Delete jobs and everything they own: pods, logs and, on this machine, checkpoints.

    Without a terminal, --yes is required for --all, and for a running job whose checkpoints are deleted with it.
    """
    targets = _targets(options, jobs, everything=everything)
    if not targets:
        options.print_message("There is no job to delete.")
        return
    _confirm(targets, everything=everything, yes=yes)
    errors, gone = [], list[tuple[Backend, str]]()
    for backend, name in targets:
        try:
            backend.delete(name)
            gone.append((backend, name))
            if options.output is None:
                click.echo(f"job {name} deleted {place_of(backend)}")
        except DdpError as error:
            errors.append(error)
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped waiting; the deletion of job {name} continues.") from None
    _print(options, gone)
    for failed in errors[:-1]:
        options.print_message(f"error: {failed}")
    if errors:
        raise errors[-1]


def _print(options: Options, gone: list[tuple[Backend, str]]) -> None:
    """Print the deleted jobs as data. The text output was printed job by job."""
    if options.output == "name":
        for _, name in gone:
            click.echo(name)
    elif options.output is not None:
        items = [
            {"kind": "JobChange", "name": name, "action": "deleted", "where": backend.where}
            | {"namespace": backend.namespace}
            for backend, name in gone
        ]
        print_output({"apiVersion": API_VERSION, "kind": "JobChangeList", "items": items}, options.output)


def _targets(options: Options, jobs: tuple[str, ...], *, everything: bool) -> list[tuple[Backend, str]]:
    if bool(jobs) == everything:
        raise UsageError(
            "Name jobs and say --all, and it is not clear which." if jobs else "No job is named.",
            hint="Name the jobs to delete, or use --all.",
        )
    if everything:
        backend = _only_place(options)
        return [(backend, str(snapshot.job["metadata"]["name"])) for snapshot in backend.jobs()]
    names = dict.fromkeys(parse_job_name(job) for job in jobs)
    return [(backend_to_change(options, name), name) for name in names]


def _only_place(options: Options) -> Backend:
    """Return the place for --all. Raises UsageError if two places have jobs and no flag selects one."""
    found = target_backends(options)
    if len(found) > 1 and local_job_names():
        raise UsageError(
            "--all could mean the jobs of this machine or those of the cluster.",
            hint=f"Add --local, or --context {found[-1].where}.",
        )
    return found[-1]


def _confirm(targets: list[tuple[Backend, str]], *, everything: bool, yes: bool) -> None:
    """Ask on a terminal. Elsewhere --yes is required for --all, and for running jobs whose checkpoints are deleted."""
    if yes:
        return
    losing = [f"job {name} {place_of(backend)}" for backend, name in targets if _loses_progress(backend, name)]
    loss = f"Running jobs lose their progress, because their checkpoints are deleted with them: {', '.join(losing)}."
    if not sys.stdin.isatty():
        if not everything and not losing:
            return
        what = f"--all deletes {pluralize(len(targets), 'job')}" if everything else "this cannot be undone"
        raise UsageError(
            f"Cannot prompt, because stdin is not a terminal, and {what}.{f' {loss}' if losing else ''}",
            hint="Add --yes to delete.",
        )
    for backend, name in targets:
        click.echo(f"  {name} {place_of(backend)}", err=True)
    if losing:
        click.echo(loss, err=True)
    count = "this job" if len(targets) == 1 else f"these {len(targets)} jobs"
    if not click.confirm(f"Delete {count} and everything in it?", err=True):
        raise Cancelled("Nothing was deleted.")


def _loses_progress(backend: Backend, name: str) -> bool:
    """Return whether a job is running and its checkpoints are deleted with it."""
    try:
        snapshot = backend.job(name, events=False)
    except DdpError:  # the deletion reports it
        return False
    if job_state(snapshot, {}, where=backend.where).state not in WITH_RANKS:
        return False
    if backend.where == "local":  # the job's directory has its volumes
        return object_store_url(submitted_spec(snapshot.job).get("args") or ()) is None
    return keeps_checkpoints_in_pods(snapshot.job)
