"""Command ``kubectl ddp list``, which is ``get`` as well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import target_backends
from kubectl_ddp.cli.internal.command import CUSTOM_COLUMNS, JSONPATH, GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import jobs_of, no_job, parse_job_name, resource
from kubectl_ddp.cli.internal.output import is_document, print_output, style
from kubectl_ddp.errors import DdpError, Interrupted, NotFound, suggest_close_match
from kubectl_ddp.kube.objects import Object, Snapshot, parse_label_selector, selects
from kubectl_ddp.observe.job_list import JobKey, JobListChange, key_of, observe_jobs, watch_list
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.job_tables import job_list_to_dict, job_table, job_to_dict
from kubectl_ddp.util.process import at_rest
from kubectl_ddp.util.text_table import Table

Found = tuple[Backend, Snapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobSelection:
    """Selection and order of the jobs to list."""

    names: Sequence[str]
    selector: Object | None
    sort_by: str | None


@click.command("list", cls=GroupedHelpCommand)
@click.argument("jobs", nargs=-1)
@click.option("-w", "--watch", "watches", is_flag=True, help="After the list, print jobs whose state changes.")
@click.option("-l", "--selector", metavar="LABELS", help="Only jobs with these labels, as in 'team=a,stage!=test'.")
@click.option("--sort-by", metavar="JSONPATH", help="Sort by a field of -o json, as in '.created' (default: by age).")
@shared_options("wide", "json", "yaml", "name", JSONPATH, CUSTOM_COLUMNS, all_namespaces=True, has_header_flag=True)
def list_jobs(
    options: Options, jobs: tuple[str, ...], *, watches: bool, selector: str | None, sort_by: str | None
) -> None:
    """List jobs of this machine and of the cluster: all of them, or those that are named.

    With -w, a job is printed again when its state, its ready nodes, its restarts or its result change. With a form of
    data, each change is one document.
    """
    listing = _JobSelection(names=[parse_job_name(job) for job in jobs], selector=_parsed(selector), sort_by=sort_by)
    backends = target_backends(options)
    with at_rest():  # short-lived; collecting cycles among ten thousand pods takes a fifth of the time
        _list_once(options, backends, listing, is_shown=not watches)
    if watches:
        _watch(options, backends, listing)


def _list_once(options: Options, backends: Sequence[Backend], listing: _JobSelection, *, is_shown: bool) -> None:
    """Read the jobs, so that wrong names are reported, and print them. The objects are freed when it returns."""
    found = _select(backends, listing, options)
    if is_shown:
        _show(options, backends, found, listing)


def _parsed(selector: str | None) -> Object | None:
    if selector is None:
        return None

    return parse_label_selector(selector)


def _select(backends: Sequence[Backend], listing: _JobSelection, options: Options) -> list[Found]:
    """Return the jobs to list. Raises NotFound if none of the names exists, and warns of the others."""
    found = _matching(jobs_of(backends, options), listing.selector)
    if not listing.names:
        return found
    found_names = {str(snapshot.job["metadata"]["name"]) for _, snapshot in found}
    chosen = [item for item in found if item[1].job["metadata"]["name"] in listing.names]
    for name in dict.fromkeys(listing.names):
        if name not in found_names:
            suggestion = suggest_close_match(name, found_names)
            missing = NotFound(
                f"Job '{name}' does not exist.", hint=suggestion or "'list' without a name shows all jobs."
            )
            if not chosen:
                raise missing
            options.print_message(f"warning: {missing}")
    return chosen


def _matching(found: list[Found], selector: Object | None) -> list[Found]:
    if selector is None:
        return found

    return [item for item in found if selects(selector, item[1].job["metadata"].get("labels") or {})]


def _order(states: Sequence[JobState], sort_by: str | None) -> Sequence[int]:
    """Return the indexes of the states in the order of ``--sort-by``."""
    if sort_by is None:
        return range(len(states))
    from kubectl_ddp.util.jsonpath import parse_path, sort_by_path  # noqa: PLC0415 - rarely needed

    return sort_by_path([job_to_dict(state) for state in states], parse_path(sort_by))


def _show(options: Options, backends: Sequence[Backend], found: Sequence[Found], listing: _JobSelection) -> None:
    if options.output == "name" and listing.sort_by is None:
        ordered, states = found, list[JobState]()
    else:
        observed = observe_jobs(found, for_table=not is_document(options.output) and listing.sort_by is None)
        order = _order(observed, listing.sort_by)
        ordered, states = [found[at] for at in order], [observed[at] for at in order]
    if options.output == "name":
        for _, snapshot in ordered:
            click.echo(resource(snapshot.job))
    elif is_document(options.output):
        is_one = len(listing.names) == len(states) == 1
        document = job_to_dict(states[0]) if is_one else job_list_to_dict(states)
        print_output(document, str(options.output), has_header=not options.no_headers)
    elif states:
        click.echo(_table(states, options).render(style(options), has_header=not options.no_headers))
    else:
        options.print_message(str(no_job(backends, options)))


def _table(states: Sequence[JobState], options: Options) -> Table:
    return job_table(states, time.time(), wide=options.output == "wide", namespaced=options.all_namespaces)


class _Reader:
    """Reads the jobs of a place. While the place does not answer, its jobs are the last ones that it had."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: dict[Backend, list[Snapshot]] = {}
        self._warned: set[str] = set()

    def jobs(self, backend: Backend) -> list[Found]:
        """Return the jobs of a backend. Each error is printed once, as a warning."""
        try:
            self._last[backend] = backend.jobs(all_namespaces=self._options.all_namespaces)
        except DdpError as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                self._options.print_message(f"warning: {error}")
        return [(backend, snapshot) for snapshot in self._last.get(backend, [])]


def _watch(options: Options, backends: Sequence[Backend], listing: _JobSelection) -> None:
    """Print the jobs, and those that change, until Ctrl-C."""
    resources: dict[JobKey, str] = {}
    reader = _Reader(options)

    def read() -> list[JobState]:
        found = _matching([item for backend in backends for item in reader.jobs(backend)], listing.selector)
        found = [item for item in found if not listing.names or item[1].job["metadata"]["name"] in listing.names]
        states = observe_jobs(found)
        resources.update(zip(map(key_of, states), (resource(snapshot.job) for _, snapshot in found), strict=True))
        return [states[at] for at in _order(states, listing.sort_by)]

    header: Sequence[str] = ()
    try:
        for change in watch_list(read):
            if not change.states:
                options.print_message(str(no_job(backends, options)))
            elif options.output == "name":
                click.echo("\n".join(resources[key_of(state)] for state in change.changed))
            elif is_document(options.output):
                _print_documents(change.changed, options, is_first=not header)
                header = [str(options.output)]
            else:
                header = _print_rows(change, options, header)
    except KeyboardInterrupt:
        raise Interrupted("Stopped watching.") from None


def _print_documents(states: Sequence[JobState], options: Options, *, is_first: bool) -> None:
    output = str(options.output)
    if output.startswith(CUSTOM_COLUMNS):
        print_output(job_list_to_dict(states), output, has_header=is_first and not options.no_headers)
        return
    for state in states:
        if output == "yaml":
            click.echo("---")
        print_output(job_to_dict(state), output)


def _print_rows(change: JobListChange, options: Options, header: Sequence[str]) -> Sequence[str]:
    """Print the rows of the changed jobs, under the header unless it is the last one. Returns the header."""
    table = _table(change.states, options)
    first, *rows = table.render(style(options)).splitlines()  # of all jobs, so that widths stay
    if table.header != header and not options.no_headers:
        click.echo(first)
    for state, row in zip(change.states, rows, strict=True):
        if state in change.changed:
            click.echo(row)
    return table.header
