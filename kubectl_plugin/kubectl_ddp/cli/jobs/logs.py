"""Commands that follow a job: ``kubectl ddp logs``, ``events`` and ``wait``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import seconds_of, target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Interrupted, NotFound
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.log_stream import Folded, fold, follow_logs, iter_with_timeout, rank_filter, read, since_time
from kubectl_ddp.observe.waiting import DELETED, GOALS, parse_wait_condition, wait_for, wait_until_deleted
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.job_tables import API_VERSION, job_to_dict
from kubectl_ddp.status.timeline import WARNING, TimelineEvent, history
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import Cell, Style, Table, duration, write_log_line


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option(
    "--rank",
    metavar="RANKS",
    help="0, 0-7, 0,3, 'failed' (all that did) or 'all'; rank 0 and errors of any by default.",
)
@click.option("-f", "--follow", "follows", is_flag=True, help="Print new lines, through restarts, until the job ends.")
@click.option("--first-error", is_flag=True, help="Print the error that came first, with its stack.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N of these lines.")
@click.option("--since", metavar="TIME", help="Begin with what was written so long ago, as in 90s or 10m.")
@click.option("--dedup", is_flag=True, help="Fold equal lines of several ranks into one that names the ranks.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time in UTC.")
@shared_options("json")
def logs(
    options: Options,
    job: str | None,
    *,
    rank: str | None,
    follows: bool,
    first_error: bool,
    tail: int | None,
    since: str | None,
    dedup: bool,
    timestamps: bool,
) -> None:
    """Print the output of the ranks of a job (default: the newest job).

    With -o json each line is one line of JSON.
    """
    backend, name = target(options, job)
    snapshot = backend.job(name)
    state = job_state(snapshot, {}, where=backend.where)
    persist_result(backend, snapshot.job, state)
    if first_error:
        _print_first_error(state, options)
        return
    ranks = rank_filter(rank, state)
    seconds = seconds_of("--since", since)
    begin = None if seconds is None else since_time(seconds)
    lines = (follow_logs if follows else read)(backend, name, ranks, tail=tail, since=begin)
    shown = fold(iter_with_timeout(lines) if follows else lines) if dedup else (Folded(line, [line]) for line in lines)
    try:
        count = _print(shown, _writer(options, timestamps=timestamps), at_once=follows)
    except KeyboardInterrupt:
        hint = f"Return with '{program()} logs {name} -f{location_flags()}'."
        raise Interrupted(f"Stopped reading; job {name} continues.", hint=hint) from None
    if not count and state.state is State.SUSPENDED:
        raise NotFound(
            f"Job '{name}' is suspended, and the lines of its pods went with them.",
            hint="Look in the collector of your logs, or resume the job; next time '--follow' before the suspend.",
        )


def _writer(options: Options, *, timestamps: bool) -> Callable[[Folded], str]:
    if options.output == "json":
        return _as_json
    return (lambda line: f"{line.first.time} {line.text}") if timestamps else (lambda line: line.text)


def _as_json(line: Folded) -> str:
    """Format a line as JSON. The text has no prefix, because the ranks are in a field."""
    fields = {"time": line.first.time, "pods": sorted({one.pod for one in line.lines}), "ranks": line.ranks}
    return json.dumps({"apiVersion": API_VERSION, "kind": "LogLine", **fields, "text": line.first.message})


def _print(lines: Iterable[Folded], written: Callable[[Folded], str], *, at_once: bool) -> int:
    """Print lines, and return how many there were."""
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - the last number is the result
        write_log_line(sys.stdout, written(line))
        if at_once:
            sys.stdout.flush()
    return count


def _print_first_error(state: JobState, options: Options) -> None:
    error = state.first_error
    if error is None:
        raise NotFound(f"No pod of job '{state.name}' ended with an error.", hint=f"Its state is {state.state}.")
    if options.output is not None:
        print_output({"apiVersion": API_VERSION, "kind": "FirstError", **asdict(error)}, options.output)
        return
    prefix = f"[rank{error.rank}] " if error.rank is not None else ""
    click.echo(f"{prefix}on {error.pod}: {error.message}" if not error.stack else f"{prefix}on {error.pod}:")
    if error.stack:
        click.echo(error.stack.rstrip())


@click.command(cls=GroupedHelpCommand)
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


def table(timeline: list[TimelineEvent], now: float) -> Table:
    """Return a table like that of ``kubectl get events``."""
    rows = [
        [
            Cell(_format_age(one, now)),
            Cell(one.type, _color(one)),
            Cell(one.reason),
            Cell(one.object),
            Cell(one.message),
        ]
        for one in timeline
    ]
    return Table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), [*rows])


def _stream_events(backend: Backend, name: str) -> Iterator[TimelineEvent]:
    seen: set[TimelineEvent] = set()
    earlier_events = backend.events(name)
    for snapshot in backend.watch(name):
        for one in history(snapshot, [*earlier_events, *snapshot.events]):
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
    return f"{one.time}  {style.apply_color(one.type, _color(one))}  {one.reason}  {one.object}  {one.message}"


def _color(one: TimelineEvent) -> str:
    return "yellow" if one.type == WARNING else ""


def _format_age(one: TimelineEvent, now: float) -> str:
    times = f" (x{one.count})" if one.count > 1 else ""
    return f"{duration(max(0.0, now - one.timestamp)) if one.timestamp else '-'}{times}"


@click.command(cls=GroupedHelpCommand)
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
