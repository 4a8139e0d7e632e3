"""``kubectl ddp logs``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.cli.target import target
from kubectl_ddp.errors import Interrupted, NotFound
from kubectl_ddp.follow import Line, follow, rank_filter, read
from kubectl_ddp.keeping import keep_first_error
from kubectl_ddp.program import program
from kubectl_ddp.state import JobState, job_state


@click.command()
@click.argument("job", required=False)
@click.option("--rank", metavar="RANKS", help="0, 0-7, 0,3, 'failed' or 'all'; rank 0 and errors of any by default.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with what comes, through restarts, to the end.")
@click.option("--first-error", is_flag=True, help="Print the error that came first, with its stack.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N of these lines.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@shared_options()
def logs(
    options: Options,
    job: str | None,
    *,
    rank: str | None,
    follows: bool,
    first_error: bool,
    tail: int | None,
    timestamps: bool,
) -> None:
    """Print what the ranks of a job wrote; of the newest job when none is named."""
    backend, name = target(options, job)
    snapshot = backend.job(name)
    state = job_state(snapshot, {}, where=backend.where)
    keep_first_error(backend, snapshot.job, state)
    if first_error:
        _print_first_error(state)
        return
    ranks = rank_filter(rank, state)
    lines = (follow if follows else read)(backend, name, ranks, tail=tail)
    try:
        _print(lines, timestamps=timestamps, at_once=follows)
    except KeyboardInterrupt:
        hint = f"Return with '{program()} logs {name} -f'."
        raise Interrupted(f"Stopped reading; the job {name} goes on.", hint=hint) from None


def _print(lines: Iterable[Line], *, timestamps: bool, at_once: bool) -> None:
    for line in lines:
        sys.stdout.write(f"{line.time} {line.text}\n" if timestamps else f"{line.text}\n")
        if at_once:
            sys.stdout.flush()


def _print_first_error(state: JobState) -> None:
    error = state.first_error
    if error is None:
        raise NotFound(f"No pod of job '{state.name}' ended with an error.", hint=f"Its state is {state.state}.")
    who = f"[rank{error.rank}] " if error.rank is not None else ""
    click.echo(f"{who}on {error.pod}: {error.message}" if not error.stack else f"{who}on {error.pod}:")
    if error.stack:
        click.echo(error.stack.rstrip())
