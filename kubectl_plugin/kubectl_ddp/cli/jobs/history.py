"""Command about results: ``kubectl ddp history``."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import is_document, print_output, style
from kubectl_ddp.errors import DdpError, NotFound, UsageError
from kubectl_ddp.observe.job_results import JobRecord, read_history, record_deletion, record_state
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.describe import values_text
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.status.termination_message import restart_count
from kubectl_ddp.util.text_table import NOTHING, Table, count, duration, number

_HEADER = (
    "NAME",
    "RUN",
    "STATUS",
    "NODES",
    "STEP",
    "LOSS",
    "SAMPLES/S",
    "RESTARTS",
    "DURATION",
    "AGE",
    "WHERE",
    "PROGRAM",
)
_WIDE_HEADER = ("NAMESPACE", "PROCESSES", "VALUES")


@click.command(cls=GroupedHelpCommand)
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, help="Number of jobs (default 20).")
@shared_options("wide", "json", "yaml", has_header_flag=True)
def history(options: Options, name: str | None, *, limit: int) -> None:
    """List jobs that were submitted from this machine, also those that are deleted, the newest first.

    The numbers are the last ones that a command saw. `report A B` compares two of them, by name or by run.
    """
    refresh_local_jobs()
    records = [record for record in read_history() if name in {None, record.name}]
    if name is not None and not records:
        raise NotFound(f"No job '{name}' was submitted from this machine.", hint="Leave out the name to list all.")
    records = records[:limit]
    if options.output is not None and is_document(options.output):
        items = [asdict(record) for record in records]
        print_output({"apiVersion": API_VERSION, "kind": "JobHistory", "items": items}, options.output)
    elif records:
        is_wide = options.output == "wide"
        rows = [[*_row(record, time.time()), *(_wide_row(record) if is_wide else ())] for record in records]
        table = Table.from_text((*_HEADER, *(_WIDE_HEADER if is_wide else ())), rows)
        click.echo(table.render(style(options), has_header=not options.no_headers))
    else:
        options.print_message("No job was submitted from this machine.")


def refresh_local_jobs() -> None:
    """Update jobs of this machine that had not ended when a command saw them last."""
    for record in read_history():
        if record.where == "local" and not record.is_over:
            _refresh(record)


def _refresh(record: JobRecord) -> None:
    from kubectl_ddp.backends.local.backend import LocalBackend  # noqa: PLC0415 - only for local jobs

    backend = LocalBackend()
    with contextlib.suppress(DdpError):
        try:
            snapshot = backend.job(record.name, events=False)
        except NotFound:
            record_deletion(record.uid)
            return
        if snapshot.job["metadata"]["uid"] == record.uid:
            record_state(snapshot.job, observe(backend, snapshot))
        else:
            record_deletion(record.uid)


def find_record(word: str) -> JobRecord:
    """Return the newest job with a name, or the one whose run id begins with the word.

    Raises:
        NotFound: If there is none.
        UsageError: If the word is the beginning of several runs.
    """
    records = read_history()
    if named := [record for record in records if record.name == word]:
        return named[0]
    runs = [record for record in records if record.run.startswith(word)]
    if len(runs) > 1:
        raise UsageError(f"'{word}' is the beginning of {len(runs)} runs.", hint="Write more of it.")
    if not runs:
        raise NotFound(f"No job '{word}' was submitted from this machine.", hint="'history' lists the jobs.")
    return runs[0]


def _row(record: JobRecord, now: float) -> list[str]:
    return [
        record.name,
        record.run,
        record.state,
        record.nodes,
        count(record.step),
        number(record.loss),
        number(record.throughput),
        str(restart_count(record.restarts)),
        duration(record.seconds),
        duration(None if record.created is None else max(0.0, now - record.created)),
        record.where,
        record.program,
    ]


def _wide_row(record: JobRecord) -> list[str]:
    return [record.namespace or NOTHING, str(record.processes_per_node), values_text(record.values) or NOTHING]
