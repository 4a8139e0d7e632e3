"""Command ``kubectl ddp hang``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Interrupted

if TYPE_CHECKING:
    from kubectl_ddp.backends.base import Backend
    from kubectl_ddp.hang.analysis import HangReport

_AGAIN_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 30.0


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, max=3600),
    default=_PATIENCE_SECONDS,
    metavar="SECONDS",
    help="Longest time to watch until every rank has moved or none does (default 30; 0 checks once).",
)
@shared_options("json", "yaml")
def hang(options: Options, job: str | None, *, seconds: float) -> None:
    """Detect whether a job hangs, and show the rank that the others wait for, with its stack.

    The default is the newest job. The command watches the ranks until all have moved or none does, and stops none.
    Ranks, steps and collectives come from the metrics port. Stacks come through exec: from Python, from py-spy if the
    image has it, or from the kernel. Without the right to exec, the rank is named without its stack. The exit code is
    14 if the job hangs or a hang has ended it, else 0.
    """
    from kubectl_ddp.hang.printer import hang_report_to_dict, text  # noqa: PLC0415 - not needed for help and completion

    backend, name = target(options, job)
    try:
        report = _watch_for_hang(backend, name, seconds)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped watching; job {name} was not changed.") from None
    if options.output is not None:
        print_output(hang_report_to_dict(report), options.output)
    else:
        click.echo(text(report, style(options)))
    click.get_current_context().exit(report.code)


def _watch_for_hang(backend: Backend, name: str, seconds: float) -> HangReport:
    from kubectl_ddp.hang.analysis import (  # noqa: PLC0415
        HangReport,
        HangState,
        Verdict,
        analyze,
        have_moved,
        is_final,
        timeout_verdict,
    )
    from kubectl_ddp.hang.collector import collect_hang_snapshot  # noqa: PLC0415
    from kubectl_ddp.hang.stacks import with_stacks  # noqa: PLC0415
    from kubectl_ddp.status.job_state import job_state  # noqa: PLC0415

    snapshot = backend.job(name, events=False)
    state = job_state(snapshot, {}, where=backend.where)
    begun = time.monotonic()
    first = sight = collect_hang_snapshot(backend, snapshot)
    while True:
        elapsed = time.monotonic() - begun
        verdict = analyze(sight)
        if verdict is None and have_moved(first, sight, elapsed):
            verdict = Verdict(answer=HangState.MOVES)
        if elapsed >= seconds:
            verdict = verdict or timeout_verdict(sight)
        elif verdict is None or not is_final(verdict, sight, elapsed):
            time.sleep(_AGAIN_SECONDS)
            sight = collect_hang_snapshot(backend, snapshot)
            continue
        sight, verdict, missing = with_stacks(backend, snapshot, sight, verdict)
        return HangReport(state=state, sight=sight, verdict=verdict, now=time.time(), stacks_missing=missing)
