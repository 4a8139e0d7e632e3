"""Commands ``kubectl ddp suspend`` and ``kubectl ddp resume``."""

from __future__ import annotations

import click

from ddp_trainer.common.constants import CheckpointScope, Env
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command_help import HelpfulCommand
from kubectl_ddp.cli.internal.job_lookup import changed, seconds_of, target
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.spec.checkpoint_place import object_store_url
from kubectl_ddp.util.invocation import location_flags, program


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait until its pods have ended.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time.")
@shared_options("json", "yaml", "name")
def suspend(options: Options, job: str | None, *, waits: bool, timeout: str | None) -> None:
    """Stop the pods of a job and keep the job (default: the newest job)."""
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    backend.suspend(name, suspended=True)
    changed(options, backend, name, "suspended")
    options.print_message(f"Resume it with '{program()} resume {name}{location_flags()}'.")
    if keeps_checkpoints_in_pods(backend.job(name).job):
        options.print_message(
            "warning: It has no checkpoint claim, so its checkpoints go with its pods, and it will start from the "
            "beginning. Submit with --checkpoint-claim to keep them."
        )
    if waits:
        wait_after(backend, name, "suspended", seconds)


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait until its ranks train.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time.")
@shared_options("json", "yaml", "name")
def resume(options: Options, job: str | None, *, waits: bool, timeout: str | None) -> None:
    """Resume a suspended job (default: the newest).

    It continues from its last checkpoint: on this machine always, on a cluster if it was submitted with
    --checkpoint-claim.
    """
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    queue = backend.suspend(name, suspended=False)
    changed(options, backend, name, "resumed")
    if queue is not None:
        options.print_message(f"It runs when Kueue admits it to the queue '{queue}'.")
    if waits:
        wait_after(backend, name, "running", seconds)


def keeps_checkpoints_in_pods(job: Object) -> bool:
    """Return whether the progress of a job is lost if all its pods are deleted together."""
    if object_store_url(job_kinds.submitted_spec(job).get("args") or ()) is not None:
        return False
    template = job_kinds.at(job, job_kinds.engine_of(job).template)
    if not template:  # it is in the runtime
        return "checkpointClaim" not in job_kinds.submitted_spec(job)
    containers = template["spec"]["containers"]
    variables = [variable for container in containers for variable in container.get("env") or ()]
    return {"name": str(Env.CHECKPOINT_SCOPE), "value": str(CheckpointScope.POD)} in variables


def wait_after(backend: Backend, name: str, goal: str, timeout: float | None) -> None:
    """Wait for the result of a change. Raises the errors of :func:`wait_for`. Ctrl-C does not revert the change."""
    try:
        wait_for(backend, name, parse_wait_condition(goal), timeout=timeout)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped waiting; job {name} will still become {goal}.") from None
