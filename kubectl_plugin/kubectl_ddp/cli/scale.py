"""``kubectl ddp scale``."""

from __future__ import annotations

import time

import click

from kubectl_ddp.cli.options import Options, shared_options
from kubectl_ddp.cli.target import seconds_of, target
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.waiting import parse_goal, wait_for


@click.command()
@click.argument("job", required=False)
@click.option("--nnodes", type=click.IntRange(min=1), required=True, metavar="N", help="Nodes that the job shall have.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the ranks train in their new number.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time; the change stands.")
@shared_options()
def scale(options: Options, job: str | None, *, nnodes: int, waits: bool, timeout: str | None) -> None:
    """Change the number of nodes of a running job; of the newest when none is named."""
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job)
    begun = time.monotonic()
    backend.scale(name, nnodes)
    size = f"{nnodes} node{'s' * (nnodes > 1)}"
    click.echo(f"job {name} scaled to {size}")
    if not waits:
        return
    per_node = int(backend.job(name).job["spec"].get("nprocPerNode") or 1)
    try:
        state = wait_for(backend, name, parse_goal(f"world-size={nnodes * per_node}"), timeout=seconds)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped waiting; the job {name} goes on, with {size}.") from None
    options.note(f"The world has {state.world_size} ranks after {time.monotonic() - begun:.1f} s.")
