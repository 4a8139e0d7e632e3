"""Display of a job's progress on stderr, in the form that the flags and the terminal allow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.progress.display import ProgressDisplay
from kubectl_ddp.cli.progress.line_printers import LinePrinter, PlainLines, RewrittenLine
from kubectl_ddp.cli.progress.progress_line import end_line, start_line
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.terminal import raw


def show_progress(backend: Backend, options: Options, *, logs: TextIO | None = None) -> ProgressDisplay:
    """Return a display for the job that a command waits for.

    Args:
        backend: Place where the job runs.
        options: Shared flags.
        logs: Stream to which the command prints logs meanwhile.
    """
    return ProgressDisplay(backend, line_printer(options, logs, os.environ))


def line_printer(options: Options, logs: TextIO | None, environ: Mapping[str, str]) -> LinePrinter | None:
    """Return the form of the progress: a rewritten line on a capable terminal, plain lines elsewhere, or None.

    A program that reads ``-o`` gets no plain lines, since it may read the errors on stderr, too.
    """
    if options.quiet or sys.stderr is None:
        return None
    # Logs in a pipe may come back to the same terminal, as through tee, where they cannot be told from the line.
    is_terminal = sys.stderr.isatty() and (logs is None or logs.isatty())
    if is_terminal and environ.get("TERM", "dumb") != "dumb":
        return RewrittenLine(raw(sys.stderr))
    return PlainLines(options.print_message) if options.output is None else None


def print_start(state: JobState, seconds: float, options: Options) -> None:
    """Print that a job runs ``seconds`` after a change, with the command that shows more. It may have ended already."""
    if state.is_terminal:
        print_end(state, options)
    else:
        options.print_message(f"{start_line(state, seconds)} Follow it with '{_command('logs -f', state)}'.")


def print_end(state: JobState, options: Options) -> None:
    """Print the summary of a job that has ended, with the command that shows more; errors have their own."""
    is_fine = state.state is State.SUCCEEDED
    more = f" See it with '{_command('report', state)}'." if is_fine else ""
    options.print_message(f"{end_line(state, time.time())}{more}")


def _command(words: str, state: JobState) -> str:
    command, *flags = words.split()
    return " ".join([program(), command, state.name, *flags]) + location_flags()
