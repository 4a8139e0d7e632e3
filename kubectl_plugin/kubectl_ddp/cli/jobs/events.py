"""Commands that follow a job without its output: ``kubectl ddp events`` and ``wait``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import seconds_of, target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.observe.waiting import DELETED, GOALS, parse_wait_condition, wait_for, wait_until_deleted
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.json_output import API_VERSION, job_to_dict
from kubectl_ddp.status.timeline import WARNING, TimelineEvent, history
from kubectl_ddp.util.text_table import Cell, Style, Table, duration


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("-f", "--follow", "-w", "--watch", "follows", is_flag=True, help="Print new events until the job ends.")
@click.option("--warnings", is_flag=True, help="Warnings only.")
@shared_options("json", "yaml")
def events(options: Options, job: str | None, *, follows: bool, warnings: bool) -> None:
    """Show events of a job and its pods, also of deleted pods (default: the newest job).

    Events of the cluster, changes of the job's state and ends of containers, by time. With -f and -o json each is one
    line of JSON.
    """
    backend, name = target(options, job)
    if follows:
        try:
            for one in _stream_events(backend, name):
                if one.type == WARNING or not warnings:
                    _print_one(one, options)
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped watching; job {name} continues.") from None
        return
    found = [one for one in history(backend.job(name), backend.events(name)) if one.type == WARNING or not warnings]
    if options.output is not None:
        items = [asdict(one) for one in found]
        print_output({"apiVersion": API_VERSION, "kind": "HappeningList", "items": items}, options.output)
    elif found:
        click.echo(table(found, time.time()).render(style(options)))
    else:
        options.print_message(f"Nothing is known to have happened to job {name}; clusters forget events after an hour.")


def table(happenings: list[TimelineEvent], now: float) -> Table:
    """Return a table like that of ``kubectl get events``."""
    rows = [
        [Cell(_format_age(one, now)), Cell(one.type, _color(one)), Cell(one.reason), Cell(one.about), Cell(one.message)]
        for one in happenings
    ]
    return Table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), [*rows])


def _stream_events(backend: Backend, name: str) -> Iterator[TimelineEvent]:
    seen: set[TimelineEvent] = set()
    past = backend.events(name)
    for snapshot in backend.watch(name):
        for one in history(snapshot, [*past, *snapshot.events]):
            if one not in seen:
                seen.add(one)
                yield one
        if job_state(snapshot, {}).is_terminal:
            return


def _print_one(one: TimelineEvent, options: Options) -> None:
    form = style(options)
    if options.output is None:
        click.echo(_line(one, form))
        return
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "Happening", **asdict(one)}
    if options.output == "json":
        click.echo(json.dumps(document))
    else:
        click.echo("---")
        print_output(document, options.output)


def _line(one: TimelineEvent, style: Style) -> str:
    return f"{one.time}  {style.apply_color(one.type, _color(one))}  {one.reason}  {one.about}  {one.message}"


def _color(one: TimelineEvent) -> str:
    return "yellow" if one.type == WARNING else ""


def _format_age(one: TimelineEvent, now: float) -> str:
    times = f" (x{one.count})" if one.count > 1 else ""
    return f"{duration(max(0.0, now - one.timestamp)) if one.timestamp else '-'}{times}"


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option(
    "--for", "what", default="complete", show_default=True, metavar="WHAT", help=f"One of {', '.join(GOALS)}."
)
@click.option("--timeout", metavar="TIME", help="Give up after this time, as in 90s or 10m; exit code 124.")
@shared_options("json", "yaml")
def wait(options: Options, job: str | None, *, what: str, timeout: str | None) -> None:
    """Wait until a condition of a job holds, and print nothing then.

    Exit code 10 means that the job's code failed, 11 that a machine failed, 12 that the job was deleted or suspended,
    and 124 that --timeout is over.
    """
    goal, seconds = parse_wait_condition(what), seconds_of("--timeout", timeout)
    backend, name = target(options, job)
    try:
        if goal is DELETED:
            wait_until_deleted(backend, name, timeout=seconds)
            return
        state = wait_for(backend, name, goal, timeout=seconds)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped waiting; job {name} continues.") from None
    if options.output is not None:
        print_output(job_to_dict(state), options.output)
