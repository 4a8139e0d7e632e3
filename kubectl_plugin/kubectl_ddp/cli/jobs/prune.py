"""Command ``kubectl ddp prune``."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from typing import Final

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import backend_for, target_backends
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import jobs_of, place_of, seconds_of
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import Cancelled, DdpError, NotFound, UsageError
from kubectl_ddp.status.job_state import TERMINAL, JobState, State, job_state
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import duration

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


@click.command(cls=HelpfulCommand)
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
    found = chosen(_finished(options), states, least, time.time())
    if not found:
        _print(options, [], dry_run=dry_run)
        options.print_message("There is no finished job to delete.")
        return
    if not dry_run:
        _confirm(found, yes=yes)
    gone = found if dry_run else _delete(found, options)
    _print(options, gone, dry_run=dry_run)


def chosen(found: list[Finished], states: frozenset[State] | set[State], least: float, now: float) -> list[Finished]:
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


def _confirm(found: list[Finished], *, yes: bool) -> None:
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
    gone, errors = [], []
    for one in found:
        try:
            one.backend.delete(one.state.name)
        except NotFound:  # deleted by another user
            continue
        except DdpError as error:
            errors.append(error)
            continue
        gone.append(one)
    for failed in errors[:-1]:
        options.print_message(f"error: {failed}")
    if errors:
        _print(options, gone, dry_run=False)
        raise errors[-1]
    return gone


def _print(options: Options, found: list[Finished], *, dry_run: bool) -> None:
    if options.output in {"json", "yaml"}:
        keys = ("name", "namespace", "where", "finished")
        items = [
            {key: getattr(one.state, key) for key in keys} | {"state": str(one.state.state), "deleted": not dry_run}
            for one in found
        ]
        print_output({"apiVersion": API_VERSION, "kind": "PruneList", "items": items}, options.output)
        return
    for one in found:
        told = one.state.name if options.output == "name" else f"job {one.state.name} deleted {place_of(one.backend)}"
        click.echo(told + (" (dry run)" if dry_run and options.output is None else ""))
