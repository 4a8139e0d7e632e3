"""Commands about results: ``kubectl ddp history`` and ``report``."""

from __future__ import annotations

import contextlib
import sys
import time
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
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


JOB: Final = "job"
PROMETHEUS: Final = "prometheus"


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.argument("url", required=False, metavar="[URL | OTHER]")
@click.option(
    "--from",
    "source",
    type=click.Choice([JOB, PROMETHEUS]),
    default=JOB,
    help="Source of its numbers: the metrics that the job has kept, or the Prometheus server at URL.",
)
@click.option("-o", "--output", "path", metavar="FILE", help="Output file, or '-' for stdout (default JOB.html).")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser of this machine.")
@shared_options()
def report(options: Options, job: str | None, url: str | None, *, source: str, path: str | None, opens: bool) -> None:
    """Write an HTML report of a job: throughput, loss, phases, ranks, goodput and events.

    With two jobs, JOB OTHER, print their results side by side and the settings that differ; `history` lists them.

    The page is one HTML file that needs no network and no server: send it on, print it, keep it. It is made of what the
    job has kept itself, while it runs and after its end, or with --from prometheus JOB URL of what that has scraped.
    """
    from ddp_report.html_report import render_html  # noqa: PLC0415
    from ddp_report.job_report import report_of  # noqa: PLC0415 - not needed for help and completion

    if source == PROMETHEUS and url is None and job is not None and "://" in job:
        job, url = None, job
    if source == JOB and job is not None and url is not None and "://" not in url:
        _compare(options, job, url, path)
        return
    if (source == PROMETHEUS) != (url is not None):
        raise UsageError(
            f"--from {source} {'needs' if url is None else 'takes no'} URL"
            + (f", and '{url}' is given." if url is not None else "."),
            hint="Write '--from prometheus JOB http://prometheus.example.com:9090'.",
        )
    if path == "-" and opens:
        raise UsageError("--open shows a file, and standard output is none.", hint="Leave out one of the two.")
    if path == "-" and sys.stdout.isatty():
        raise UsageError("A page is nothing for a terminal.", hint="Name a file with -o, or send it on with '>'.")
    backend, name = target(options, job)
    made = report_of(backend, name, url=url, warn=lambda text: options.print_message(f"warning: {text}"))
    _write_report(render_html(made), Path(path or f"{name}.html"), options, opens=opens)
    if made.measured is None:
        options.print_message("No pod has reported metrics, so the page has no curves.")


def _compare(options: Options, job: str, other: str, path: str | None) -> None:
    from ddp_report.comparison import comparison_table  # noqa: PLC0415
    from kubectl_ddp.cli.internal.output import style  # noqa: PLC0415 - not needed for a page

    if path is not None:
        raise UsageError("Two jobs are compared as text, and -o names the file of a page.", hint="Leave -o out.")
    refresh_local_jobs()
    click.echo(comparison_table(find_record(job), find_record(other)).render(style(options)))


def _write_report(text: str, path: Path, options: Options, *, opens: bool) -> None:
    from ddp_report.job_report import save_report  # noqa: PLC0415 - not needed for help and completion

    if str(path) == "-":
        sys.stdout.write(text)
        return
    save_report(text, path)
    click.echo(path)
    if opens and not webbrowser.open(path.resolve().as_uri()):
        options.print_message(f"No browser could be started; open {path} in one.")
