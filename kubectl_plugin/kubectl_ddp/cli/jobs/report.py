"""Command ``kubectl ddp report``."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command_help import HelpfulCommand
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options
from kubectl_ddp.errors import DdpError, Forbidden, UsageError
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe.result_annotations import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.termination_message import workers

if TYPE_CHECKING:
    from kubectl_ddp.report.series import Series
    from kubectl_ddp.status.job_state import JobState

JOB: Final = "job"
PROMETHEUS: Final = "prometheus"
_MARGIN_SECONDS: Final = 30.0
"""Seconds after the job's end to include in the query, for the samples of the last scrape."""


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.argument("url", required=False)
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

    The page is one HTML file that needs no network and no server: send it on, print it, keep it. It is made of what the
    job has kept itself, while it runs and after its end, or with --from prometheus JOB URL of what that has scraped.
    """
    from kubectl_ddp.report.compose import report as composed  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.report.html_report import render_html  # noqa: PLC0415

    if source == PROMETHEUS and url is None and job is not None and "://" in job:
        job, url = None, job
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
    snapshot = backend.job(name, events=False)
    events = _events(backend, name, options)
    state = observe(backend, replace(snapshot, events=tuple(events)))
    persist_result(backend, snapshot.job, state)
    now = time.time()
    series, words = _series(backend, snapshot, state, url, now)
    made = composed(snapshot, state, events, series, now=now, source=words)
    _write_report(render_html(made), Path(path or f"{name}.html"), options, opens=opens)
    if made.measured is None:
        options.print_message("No pod has reported metrics, so the page has no curves.")


def _events(backend: Backend, name: str, options: Options) -> list[Object]:
    try:
        return backend.events(name)
    except Forbidden as error:
        options.print_message(
            f"warning: The page has no events, and takes what happened from the objects alone: {error.message}"
        )
        return []


def _series(
    backend: Backend, snapshot: Snapshot, state: JobState, url: str | None, now: float
) -> tuple[list[Series], str]:
    """Return the series, and their origin as a sentence."""
    if url is None:
        from kubectl_ddp.report.history_source import load_series  # noqa: PLC0415

        return load_series(backend, snapshot), "Numbers are those that the pods of the job have kept themselves."
    from kubectl_ddp.report.prometheus import TimeRange, query_series, redact_url  # noqa: PLC0415

    start = state.created if state.created is not None else now - 86_400
    span = TimeRange(start=start, end=max(start + 1, min(now, (state.finished or now) + _MARGIN_SECONDS)))
    namespace = state.namespace if backend.where != "local" else None
    pods = {
        str(pod.get("status", {}).get("podIP") or ""): str(pod["metadata"]["name"]) for pod in workers(snapshot.pods)
    }
    return query_series(
        url, state.name, namespace, span, pods
    ), f"Numbers are those of Prometheus at {redact_url(url)}."


def _write_report(text: str, path: Path, options: Options, *, opens: bool) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        # Readable only by its owner, because errors and events of a job may contain confidential text.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DdpError(f"'{path}' cannot be written: {error.strerror}.", hint="Name another file with -o.") from error
    click.echo(path)
    if opens and not webbrowser.open(path.resolve().as_uri()):
        options.print_message(f"No browser could be started; open {path} in one.")
