"""``kubectl ddp top``."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Final

import click

from kubectl_ddp.backend import Backend
from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.cli.target import print_document, style, target
from kubectl_ddp.describe import progress_text, restarts_text
from kubectl_ddp.document import job_document
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.exposition import Samples
from kubectl_ddp.present import BAR_LEGEND, Style, number, state_cell, top_table
from kubectl_ddp.scrape import observe, scrape
from kubectl_ddp.state import JobState, job_state

_FRAME_SECONDS: Final = 1.0
_WINDOW: Final = 5
"""Rates are over the last so many frames."""

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\033[H", "\033[K", "\033[J"


@click.command()
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print one table and stop; so it is when stdout is no terminal.")
@shared_options("json", "yaml")
def top(options: Options, job: str | None, *, once: bool) -> None:
    """Show throughput, loss, and the step of every rank, live; of the newest job when none is named."""
    backend, name = target(options, job)
    if options.output is not None:
        print_document(job_document(observe(backend, backend.job(name, events=False))), options.output)
    elif once or not sys.stdout.isatty():
        click.echo(frame(observe(backend, backend.job(name, events=False)), time.time(), style(options)))
    else:
        try:
            _watch(backend, name, options)
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped watching; the job {name} goes on.") from None


def frame(state: JobState, now: float, looks: Style) -> str:
    """One picture of a job."""
    cell = state_cell(state.state)
    first = f"{state.name}  {looks.paint(cell.text, cell.color)}  {progress_text(state)}".rstrip()
    facts = {
        "throughput": f"{number(state.throughput)} samples/s" if state.throughput is not None else "",
        "loss": number(state.loss) if state.loss is not None else "",
        "world": str(state.world_size) if state.world_size is not None else "",
        "restarts": restarts_text(state),
    }
    second = "  ".join(f"{name} {text}" for name, text in facts.items() if text)
    if not state.ranks:
        return f"{first}\n{second}\n{state.reason}"
    return "\n".join([first, second, "", top_table(state, now).render(looks), looks.paint(BAR_LEGEND, "dim")])


def _watch(backend: Backend, name: str, options: Options) -> None:
    frames: deque[dict[str, Samples]] = deque(maxlen=_WINDOW)
    click.clear()
    while True:
        begun = time.monotonic()
        snapshot = backend.job(name, events=False)
        samples = scrape(backend, snapshot)
        state = job_state(snapshot, samples, where=backend.where, before=frames[0] if frames else None)
        frames.append(samples)
        lines = frame(state, time.time(), style(options)).splitlines()
        sys.stdout.write(_HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END)
        sys.stdout.flush()
        if state.is_terminal:
            return
        time.sleep(max(0.0, _FRAME_SECONDS - (time.monotonic() - begun)))
