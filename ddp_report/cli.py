"""Command ``kubectl ddp report``, which the command line finds by an entry point."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Final

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import style
from kubectl_ddp.cli.jobs.history import find_record, refresh_local_jobs
from kubectl_ddp.errors import UsageError

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
