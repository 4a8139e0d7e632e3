"""Commands that diagnose a job: ``kubectl ddp why``, ``hang`` and ``bundle``."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import DdpError, Interrupted, UsageError
from kubectl_ddp.util.text_table import raw

if TYPE_CHECKING:
    from kubectl_ddp.backends.base import Backend
    from kubectl_ddp.hang.analysis import HangReport


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@shared_options("json", "yaml")
def why(options: Options, job: str | None) -> None:
    """Diagnose a job: print causes with evidence and fix, the likeliest cause first.

    The exit code is the class of the first cause: 0 the job runs or succeeded, 10 its code failed, 11 a machine
    failed, 12 it is suspended or being deleted, 13 it waits for something, 14 it hangs.
    """
    from kubectl_ddp.observe.job_results import persist_result  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.why.diagnosis import diagnosis_text, diagnosis_to_dict, gather, run_checks  # noqa: PLC0415

    backend, name = target(options, job)
    facts = gather(backend, name)
    persist_result(backend, facts.job, facts.state)
    found = run_checks(facts)
    if options.output is not None:
        print_output(diagnosis_to_dict(facts, found), options.output)
    else:
        click.echo(diagnosis_text(facts, found, style(options)))
    for sentence in facts.around.unseen:
        options.print_message(f"Not looked at: {sentence}")
    if found and found[0].exit_code:
        click.get_current_context().exit(found[0].exit_code)


_AGAIN_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 30.0


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, max=3600),
    default=_TIMEOUT_SECONDS,
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
        HangAnalysis,
        HangReport,
        HangState,
        analyze,
        have_moved,
        is_final,
        timeout_analysis,
    )
    from kubectl_ddp.hang.collector import collect_hang_snapshot  # noqa: PLC0415
    from kubectl_ddp.hang.stacks import with_stacks  # noqa: PLC0415
    from kubectl_ddp.status.job_state import job_state  # noqa: PLC0415

    snapshot = backend.job(name, events=False)
    state = job_state(snapshot, {}, where=backend.where)
    started = time.monotonic()
    first = latest = collect_hang_snapshot(backend, snapshot)
    while True:
        elapsed = time.monotonic() - started
        analysis = analyze(latest)
        if analysis is None and have_moved(first, latest, elapsed):
            analysis = HangAnalysis(answer=HangState.MOVES)
        if elapsed >= seconds:
            analysis = analysis or timeout_analysis(latest)
        elif analysis is None or not is_final(analysis, latest, elapsed):
            time.sleep(_AGAIN_SECONDS)
            latest = collect_hang_snapshot(backend, snapshot)
            continue
        latest, analysis, missing = with_stacks(backend, snapshot, latest, analysis)
        return HangReport(state=state, hang_snapshot=latest, analysis=analysis, now=time.time(), stacks_missing=missing)


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option(
    "-O",
    "--file",
    "path",
    metavar="FILE",
    help="Output file, or '-' for stdout (default JOB-TIME.tar.gz in the current directory).",
)
@shared_options()
def bundle(options: Options, job: str | None, *, path: str | None) -> None:
    """Pack everything needed to debug a job into one tar.gz, without secrets.

    Contains its objects and events, logs and metrics of its pods, the state of the cluster around it, and the findings
    of why. Values of variables that look like secrets are removed, and Secrets are never read. Check the archive before
    you share it.
    """
    from kubectl_ddp.why.support_bundle import files, write  # noqa: PLC0415 - not needed for help and completion

    if path == "-" and sys.stdout.isatty():
        raise UsageError("An archive is nothing for a terminal.", hint="Name a --file, or send it somewhere with '>'.")
    backend, name = target(options, job)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = f"{name}-{stamp}"
    archive = io.BytesIO()
    size = write(archive, folder, files(backend, name))
    if path == "-":
        raw(sys.stdout).buffer.write(archive.getvalue())
        return
    out = Path(path or f"{folder}.tar.gz")
    try:
        # Readable only by its owner, because the removal of secrets is a heuristic.
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(archive.getvalue())
    except OSError as error:
        raise DdpError(f"'{out}' cannot be written: {error.strerror}.", hint="Name another --file.") from error
    click.echo(out)
    packed = len(archive.getvalue())
    options.print_message(f"{packed >> 10} KiB packed, {size >> 10} KiB unpacked. Look through it before you share it.")
