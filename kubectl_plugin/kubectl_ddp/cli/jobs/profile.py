"""Command ``kubectl ddp profile``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from ddp_trainer.common.constants import Profile
from kubectl_ddp.backends.access import parse_timeout
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.observe.rank_locator import find_rank
from kubectl_ddp.status.json_output import API_VERSION

LOCAL: Final = "local"
"""Value of ``Backend.where`` on this machine."""


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="R", help="Rank to record (default 0).")
@click.option(
    "--steps",
    type=click.IntRange(1, Profile.MOST_STEPS.value),
    default=Profile.STEPS.value,
    metavar="N",
    help=f"Number of steps, {Profile.MOST_STEPS:d} at most (default {Profile.STEPS:d}).",
)
@click.option("-O", "--file", "path", metavar="FILE", help="Output file (default JOB-rankR.trace.json.gz).")
@click.option(
    "--timeout", metavar="TIME", default="2m", help="Longest time to wait for the steps, as in 90s or 5m (default 2m)."
)
@shared_options("json", "yaml")
def profile(options: Options, job: str | None, *, rank: int, steps: int, path: str | None, timeout: str) -> None:
    """Record a trace of a rank's next steps with torch.profiler, and copy it here; the job keeps running.

    It opens in https://ui.perfetto.dev and chrome://tracing. A step is one step of a torch optimizer, in any script
    under ddp-launch. Without a request, there is no overhead. During the recording, that rank is slower, and the others
    wait for it.
    """
    from kubectl_ddp.observe.profile import entry, fetch_trace  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.render.runtime import words_in_pod  # noqa: PLC0415

    seconds = parse_timeout(timeout)
    if not seconds:
        raise UsageError(f"--timeout {timeout} leaves no time for a step.", hint="Set a longer time, as in 2m.")
    backend, name = target(options, job)
    place = find_rank(backend, name, rank)
    if place.local_rank is None:
        raise NotFound(
            f"The metrics of pod {place.name} do not report yet which worker is rank {rank}.",
            hint="Try again in a moment.",
        )
    options.print_message(str(place))
    file = Path(path or f"{name}-rank{rank}.trace.json.gz")
    # A local pod uses the interpreter of its submission, usually that of this process.
    here = os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable
    python = here if backend.where == LOCAL else "python3"
    command = () if backend.where == LOCAL else words_in_pod(backend.job(name).job, "profile")
    flags = place.local_rank, place.variables
    wanted = entry(*flags, steps=steps, seconds=seconds, python=python, command=command)
    size = fetch_trace(backend.enter(place.pod, wanted), file, seconds)
    if options.output is not None:
        told = {"apiVersion": API_VERSION, "kind": "Trace", "job": name, "rank": rank, "pod": place.name}
        print_output({**told, "steps": steps, "file": str(file), "size_bytes": size}, options.output)
        return
    click.echo(file)
    options.print_message(f"{size >> 10} KiB; open it in https://ui.perfetto.dev.")
