"""Commands ``kubectl ddp suspend`` and ``kubectl ddp resume``."""

from __future__ import annotations

import time

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import changed, seconds_of, target, warn_of_changed_script
from kubectl_ddp.cli.internal.job_progress import print_start, show_progress
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.observe import result_annotations
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.util.process import location_flags, program


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait until its pods have ended, showing progress.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time.")
@shared_options("json", "yaml", "name")
def suspend(options: Options, job: str | None, *, waits: bool, timeout: str | None) -> None:
    """Stop the pods of a job and keep the job (default: the newest job)."""
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    if keeps_checkpoints_in_pods(backend.job(name).job):
        options.print_message(
            f"warning: Job {name} has no checkpoint claim, so its checkpoints go with its pods, and it will start from "
            "the beginning. Submit with --checkpoint-claim to keep them."
        )
    result_annotations.suspend(backend, name)
    changed(options, backend, name, "suspended")
    options.print_message(f"Resume it with '{program()} resume {name}{location_flags()}'.")
    if waits:
        wait_after(options, backend, name, "suspended", seconds)


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait until its ranks train, showing progress.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time.")
@shared_options("json", "yaml", "name")
def resume(options: Options, job: str | None, *, waits: bool, timeout: str | None) -> None:
    """Resume a suspended job (default: the newest).

    It continues from its last checkpoint: on this machine always, on a cluster if it was submitted with
    --checkpoint-claim.
    """
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    if backend.where == "local":
        warn_of_changed_script(options, backend.job(name).job)
    queue = backend.suspend(name, suspended=False)
    changed(options, backend, name, "resumed")
    if queue is not None:
        options.print_message(f"It runs when Kueue admits it to the queue '{queue}'.")
    if waits:
        wait_until_running(options, backend, name, seconds)


def wait_until_running(options: Options, backend: Backend, name: str, timeout: float | None) -> None:
    """Wait until the ranks of a job train, and print it. Raises the errors of :func:`wait_after`."""
    begun = time.monotonic()
    state = wait_after(options, backend, name, "running", timeout)
    print_start(state, time.monotonic() - begun, options)


def wait_after(options: Options, backend: Backend, name: str, goal: str, timeout: float | None) -> JobState:
    """Show the progress of a job until a change has its result. Returns the state then.

    Raises the errors of :func:`wait_for`. Ctrl-C does not revert the change.
    """
    try:
        with show_progress(backend, options) as display:
            return wait_for(backend, name, parse_wait_condition(goal), timeout=timeout, seen=display.seen)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped waiting; job {name} will still become {goal}.",
            hint=f"Wait again with '{program()} wait {name} --for={goal}{location_flags()}'.",
        ) from None
