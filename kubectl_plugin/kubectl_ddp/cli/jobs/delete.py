"""Commands ``kubectl ddp delete`` and ``kubectl ddp prune``."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from typing import Final

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.local.directory import local_job_names
from kubectl_ddp.backends.select import backend_for, backend_to_change, target_backends
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import jobs_of, parse_job_name, place_of, seconds_of
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import Cancelled, DdpError, Interrupted, NotFound, UsageError
from kubectl_ddp.kube.job_kinds import submitted_spec
from kubectl_ddp.observe import job_results
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods, object_store_url
from kubectl_ddp.status.job_state import TERMINAL, WITH_RANKS, JobState, State, job_state
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.text_table import duration, pluralize


@click.command(cls=GroupedHelpCommand)
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
        options.print_message("No job to delete.")
        return
    _confirm(targets, everything=everything, yes=yes)
    errors, deleted = [], list[tuple[Backend, str]]()
    for backend, name in targets:
        try:
            job_results.delete(backend, name)
            deleted.append((backend, name))
            if options.output is None:
                click.echo(f"job {name} deleted {place_of(backend)}")
        except DdpError as error:
            errors.append(error)
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped waiting; the deletion of job {name} continues.") from None
    _print(options, deleted)
    for failed in errors[:-1]:
        options.print_message(f"error: {failed}")
    if errors:
        raise errors[-1]


def _print(options: Options, deleted: list[tuple[Backend, str]]) -> None:
    """Print the deleted jobs as data. The text output was printed job by job."""
    if options.output == "name":
        for _, name in deleted:
            click.echo(name)
    elif options.output is not None:
        items = [
            {"kind": "JobChange", "name": name, "action": "deleted", "where": backend.where}
            | {"namespace": backend.namespace}
            for backend, name in deleted
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
    affected = [f"job {name} {place_of(backend)}" for backend, name in targets if _deletes_checkpoints(backend, name)]
    loss = f"Running jobs lose their progress, because their checkpoints are deleted with them: {', '.join(affected)}."
    if not sys.stdin.isatty():
        if not everything and not affected:
            return
        what = f"--all deletes {pluralize(len(targets), 'job')}" if everything else "this cannot be undone"
        raise UsageError(
            f"Cannot prompt, because stdin is not a terminal, and {what}.{f' {loss}' if affected else ''}",
            hint="Add --yes to delete.",
        )
    for backend, name in targets:
        click.echo(f"  {name} {place_of(backend)}", err=True)
    if affected:
        click.echo(loss, err=True)
    count = "this job" if len(targets) == 1 else f"these {len(targets)} jobs"
    if not click.confirm(f"Delete {count} and everything in it?", err=True):
        raise Cancelled("Nothing was deleted.")


def _deletes_checkpoints(backend: Backend, name: str) -> bool:
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


STATES: Final = {str(state).lower(): state for state in State if state in TERMINAL}


@dataclass(frozen=True, slots=True)
class Finished:
    """Job that has ended, with its backend."""

    backend: Backend
    state: JobState

    def seconds_since_end(self, now: float) -> float:
        """Return the seconds since the job's end; since its creation if the end is unknown."""
        ended = self.state.finished or self.state.created or now
        return max(0.0, now - ended)

    def __str__(self) -> str:
        """Return the job as text."""
        where = f"{self.backend.where}, {self.state.namespace}" if self.state.namespace else self.backend.where
        return f"{self.state.name} ({where}): {self.state.state}"


@click.command(cls=GroupedHelpCommand)
@click.option("--older-than", metavar="TIME", help="Only jobs that ended longer ago than this, as in 12h or 7d.")
@click.option(
    "--state",
    "words",
    multiple=True,
    type=click.Choice([*STATES], case_sensitive=False),
    help="Only jobs in this final state; repeatable (default all).",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, without deleting it.")
@click.option("-y", "--yes", is_flag=True, help="Delete without confirmation.")
@shared_options("json", "yaml", "name", all_namespaces=True)
def prune(options: Options, *, older_than: str | None, words: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Delete finished jobs and everything they own: pods, logs and, on this machine, checkpoints.

    Covers jobs of this machine and of the cluster, unless a flag selects one. Without a terminal, --yes is required.
    """
    least = seconds_of("--older-than", older_than) or 0.0
    states = {STATES[word.lower()] for word in words} or TERMINAL
    found = select_finished(_finished(options), states, least, time.time())
    if not found:
        _print_deleted(options, [], dry_run=dry_run)
        options.print_message("No finished job to delete.")
        return
    if not dry_run:
        _confirm_prune(found, yes=yes)
    deleted = found if dry_run else _delete(found, options)
    _print_deleted(options, deleted, dry_run=dry_run)


def select_finished(
    found: list[Finished], states: frozenset[State] | set[State], least: float, now: float
) -> list[Finished]:
    """Return the jobs that ended in one of these states, at least ``least`` seconds ago."""
    return [one for one in found if one.state.state in states and one.seconds_since_end(now) >= least]


def _finished(options: Options) -> list[Finished]:
    found = []
    for backend, snapshot in jobs_of(target_backends(options), options):
        state = job_state(snapshot, {}, where=backend.where)
        if state.is_terminal:
            found.append(Finished(_of_namespace(backend, state, options), state))
    return found


def _of_namespace(backend: Backend, state: JobState, options: Options) -> Backend:
    """Return the backend for the namespace of the job."""
    if not options.all_namespaces or backend.where == "local":
        return backend
    return backend_for(dataclasses.replace(options, namespace=state.namespace, all_namespaces=False))


def _confirm_prune(found: list[Finished], *, yes: bool) -> None:
    if yes:
        return
    count = "this job" if len(found) == 1 else f"these {len(found)} jobs"
    if not sys.stdin.isatty():
        raise UsageError(
            f"Cannot prompt before deleting {count}: stdin is not a terminal.",
            hint="Add --yes, or --dry-run to preview.",
        )
    for one in found:
        ago = duration(one.seconds_since_end(time.time()))
        click.echo(f"  {one}, {ago} ago", err=True)
    if not click.confirm(f"Delete {count} and everything in it?", err=True):
        raise Cancelled("Nothing was deleted.")


def _delete(found: list[Finished], options: Options) -> list[Finished]:
    """Delete the jobs and return the deleted ones. An error does not stop the others; the last error is raised."""
    deleted, errors = [], []
    for one in found:
        try:
            job_results.delete(one.backend, one.state.name)
        except NotFound:  # deleted by another user
            continue
        except DdpError as error:
            errors.append(error)
            continue
        deleted.append(one)
    for failed in errors[:-1]:
        options.print_message(f"error: {failed}")
    if errors:
        _print_deleted(options, deleted, dry_run=False)
        raise errors[-1]
    return deleted


def _print_deleted(options: Options, found: list[Finished], *, dry_run: bool) -> None:
    if options.output in {"json", "yaml"}:
        keys = ("name", "namespace", "where", "finished")
        items = [
            {key: getattr(one.state, key) for key in keys} | {"state": str(one.state.state), "deleted": not dry_run}
            for one in found
        ]
        print_output({"apiVersion": API_VERSION, "kind": "PruneList", "items": items}, options.output)
        return
    for one in found:
        text = one.state.name if options.output == "name" else f"job {one.state.name} deleted {place_of(one.backend)}"
        click.echo(text + (" (dry run)" if dry_run and options.output is None else ""))
