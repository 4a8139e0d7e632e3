"""Commands that change a running job: ``kubectl ddp scale``, ``suspend``, ``resume`` and ``restart``."""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from ddp_trainer.common.constants import Label
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import changed, seconds_of, target, warn_of_changed_script
from kubectl_ddp.cli.internal.progress import print_start, show_progress
from kubectl_ddp.errors import Cancelled, InfrastructureFailed, Interrupted, JobFailed, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe import job_results
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.spec.layout import spare_ranks
from kubectl_ddp.spec.trainer_arguments import keeps_checkpoints_in_pods
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import pluralize

if TYPE_CHECKING:
    from kubectl_ddp.render import Code
    from kubectl_ddp.spec.model import JobSpec

_RESIZE_SECONDS: Final = 120.0
"""Seconds to wait for ranks that trained before (default of --timeout)."""


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--nnodes", type=click.IntRange(min=1), required=True, metavar="N", help="New number of nodes.")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=None,
    help="Wait until the new number of ranks trains, showing progress (default when they report metrics).",
)
@click.option("--timeout", metavar="TIME", help="Stop waiting after this time (default 2m); the change remains.")
@click.option("--dry-run", is_flag=True, help="Print what would change, without changing it.")
@shared_options("json", "yaml", "name")
def scale(
    options: Options, job: str | None, *, nnodes: int, waits: bool | None, timeout: str | None, dry_run: bool
) -> None:
    """Change the number of nodes of a running job (default: the newest).

    Prints the effect on the ranks, and waits until the ranks report the new world size.
    """
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    snapshot = backend.job(name)
    before = observe(backend, snapshot)
    persist_result(backend, snapshot.job, before)
    per_node = job_kinds.processes_per_node(snapshot.job)
    if waits and before.uses_torchrun:
        raise UsageError(
            f"The ranks of job '{name}' report no world size, because its launcher is torchrun.",
            hint="Leave --wait out.",
        )
    size = pluralize(nnodes, "node")
    backend.scale(name, nnodes, dry_run=dry_run)
    if options.output is None:  # a rejected change has no effect to print
        options.print_message(effect(before, nnodes, per_node) + left_over(snapshot.job, nnodes * per_node))
    seconds_taken = None
    action = "unchanged" if before.nodes.training == nnodes else "scaled"
    message = f"{action} at {size}" if action == "unchanged" else f"{action} to {size}"
    message += " (dry run)" if dry_run else ""
    if options.output is None:
        changed(options, backend, name, action, message)
    waits = before.world_size is not None and before.state is State.RUNNING if waits is None else waits
    if waits and not dry_run:
        seconds_taken = _wait_for_ranks(options, backend, before, nnodes * per_node, seconds)
        ranks = nnodes * per_node
        options.print_message(f"The world has {pluralize(ranks, 'rank')} after {seconds_taken:.1f} s.")
    if options.output is not None:
        facts = {"nodes": nnodes, "nodesBefore": before.nodes.training, "ranks": nnodes * per_node, "dryRun": dry_run}
        changed(options, backend, name, action, message, **facts, confirmedAfterSeconds=seconds_taken)


def effect(before: JobState, nodes: int, per_node: int) -> str:
    """Describe the effect of a new number of nodes, in one or two sentences."""
    then, now = before.nodes.training, nodes
    if then == now:
        return f"Job {before.name} has {pluralize(then, 'node')} already; nothing changes."
    ranks = f"{then} → {now} nodes, {then * per_node} → {now * per_node} ranks"
    if before.state is not State.RUNNING:
        return f"Job {before.name}: {ranks}, once it runs; it is {before.state} now."
    what = (
        "training continues when the new pods have joined" if now > then else "the pods with the highest numbers leave"
    )
    if before.uses_torchrun:
        return f"Job {before.name}: {ranks}; torchrun restarts all worker processes."
    return (
        f"Job {before.name}: {ranks}; {what}, with one re-form. The reference trainer keeps the global batch, and each "
        f"rank computes {'less' if now > then else 'more'} of it; a script of your own may see another batch."
    )


def left_over(job: Object, ranks: int) -> str:
    """Return a sentence about ranks that the job's layout cannot use; empty if there are none."""
    try:
        layouts = LayoutRange.parse(str(job_kinds.submitted_spec(job).get("parallel") or ""))
    except LayoutError:  # no layout, or one of a newer version
        return ""
    if not (spare := spare_ranks(layouts, ranks)):
        return ""
    return f" Its layout '{layouts}' has no place for {spare} of {pluralize(ranks, 'rank')}."


def _wait_for_ranks(options: Options, backend: Backend, before: JobState, ranks: int, timeout: float | None) -> float:
    """Wait until the job has that number of ranks, and return the seconds. Raises TimedOut and errors that end the
    job.
    """
    started = time.monotonic()
    goal = parse_wait_condition(f"world-size={ranks}")
    try:
        with show_progress(backend, options) as display:
            wait_for(backend, before.name, goal, timeout=timeout or _RESIZE_SECONDS, seen=display.seen)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped waiting; job {before.name} continues, and will have {pluralize(ranks, 'rank')}.",
            hint=f"Wait again with '{program()} wait {before.name} --for={goal.text}{location_flags()}'.",
        ) from None
    return time.monotonic() - started


@click.command(cls=GroupedHelpCommand)
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
    job_results.suspend(backend, name)
    changed(options, backend, name, "suspended")
    options.print_message(f"Resume it with '{program()} resume {name}{location_flags()}'.")
    if waits:
        wait_after(options, backend, name, "suspended", seconds)


@click.command(cls=GroupedHelpCommand)
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
    started = time.monotonic()
    state = wait_after(options, backend, name, "running", timeout)
    print_start(state, time.monotonic() - started, options)


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


_STOP_SECONDS: Final = 300.0
"""Seconds to wait for the pods to save and end (default of --timeout)."""


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--wait", "waits", is_flag=True, help="Wait until its ranks train again, showing progress.")
@click.option("--timeout", metavar="TIME", help="Give up waiting after this time; 5m for its pods to end by default.")
@click.option("-y", "--yes", is_flag=True, help="Restart without confirmation (default when stdin is not a terminal).")
@shared_options("json", "yaml", "name")
def restart(options: Options, job: str | None, *, waits: bool, timeout: str | None, yes: bool) -> None:
    """Restart all pods of a job from its last checkpoint (default: the newest job).

    A running job keeps its run: its pods save and end, and new pods replace them. A failed job gets a new run under its
    name, with the same arguments and code. Its checkpoints stay; its old pods and their logs are deleted.
    """
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    if record := backend.pending_restart(name):
        _finish(options, backend, name, record)
    else:
        restart_job(options, backend, name, seconds, yes=yes)
    if waits:
        wait_until_running(options, backend, name, seconds)


def _finish(options: Options, backend: Backend, name: str, record: Sequence[Object]) -> None:
    """Complete an interrupted restart that had already deleted the old run."""
    from kubectl_ddp.backends.job_recovery import recover_spec, run_of  # noqa: PLC0415
    from kubectl_ddp.code.archive import read_back  # noqa: PLC0415 - not needed for help and completion

    effect = f"An earlier restart of job {name} was cut off; it is finished now."
    run = _submit_new_run(backend, name, recover_spec(record[0]), read_back(record), str(run_of(record[0])))
    changed(options, backend, name, "restarted", effect=effect, runId=run)
    if options.output is None:
        options.print_message(effect)


def restart_job(options: Options, backend: Backend, name: str, seconds: float | None, *, yes: bool) -> None:
    """Restart the pods of a job, and print the effect."""
    snapshot = backend.job(name)
    state = job_state(snapshot, {}, where=backend.where)
    _check(state)
    effect = _report_effect(options, state, backend, snapshot)
    if backend.where == "local":
        warn_of_changed_script(options, snapshot.job)
    _confirm_restart(name, is_dangerous=_deletes_checkpoints(backend, snapshot, state), yes=yes)
    if state.state is State.FAILED:
        run = _renew(backend, name)
    elif (failed := _try_restart(options, backend, state, seconds)) is None:
        run = _run_id(backend, name)
    else:
        effect = _report_effect(options, job_state(failed, {}, where=backend.where), backend, failed)
        run = _renew(backend, name)
    changed(options, backend, name, "restarted", effect=effect, runId=run)


def _check(state: JobState) -> None:
    if state.state is State.SUCCEEDED:
        raise UsageError(
            f"Job '{state.name}' has succeeded, and there is nothing left for it to do.",
            hint=f"'{program()} clone {state.name} --name NEW{location_flags()}' runs it once more.",
        )
    if state.state is State.DELETING:
        raise UsageError(f"Job '{state.name}' is being deleted.", hint="Submit it again when it is gone.")


def _deletes_checkpoints(backend: Backend, snapshot: Snapshot, state: JobState) -> bool:
    """Return whether progress is lost, because checkpoints are deleted with running pods."""
    is_running = state.state not in {State.SUSPENDED, State.LOST}
    return is_running and backend.where != "local" and keeps_checkpoints_in_pods(snapshot.job)


def _report_effect(options: Options, state: JobState, backend: Backend, snapshot: Snapshot) -> str:
    """Print the effect of the restart, unless the output document contains it."""
    effect = _effect(state, backend, snapshot)
    if options.output is None:
        options.print_message(effect)
    return effect


def _effect(state: JobState, backend: Backend, snapshot: Snapshot) -> str:
    from_where = (
        "from the beginning, since it has no checkpoint claim"
        if _deletes_checkpoints(backend, snapshot, state)
        else "from its last checkpoint"
    )
    if state.queue is not None:
        from_where += ", when its queue admits it"
    what = {
        State.FAILED: f"Job {state.name} failed; it gets a new run, {from_where}; the old logs are deleted.",
        State.LOST: f"Job {state.name} gets a new local engine, and continues {from_where}.",
        State.SUSPENDED: f"Job {state.name} is suspended; it continues {from_where}.",
    }
    pods = pluralize(state.nodes.training, "node")
    return what.get(state.state, f"All pods of job {state.name} ({pods}) end and start again, {from_where}.")


def _confirm_restart(name: str, *, is_dangerous: bool, yes: bool) -> None:
    if yes or not is_dangerous or not sys.stdin.isatty():
        return
    if not click.confirm(f"Restart job {name}, and lose its progress?", err=True):
        raise Cancelled("Nothing was restarted.")


def _try_restart(options: Options, backend: Backend, state: JobState, timeout: float | None) -> Snapshot | None:
    """Restart the pods of the same run. Returns the snapshot of the job if it failed before it was suspended."""
    try:
        _suspend_and_resume(options, backend, state, timeout)
    except (UsageError, JobFailed, InfrastructureFailed):
        snapshot = backend.job(state.name)
        if job_state(snapshot, {}, where=backend.where).state is not State.FAILED:
            raise
        return snapshot
    return None


def _suspend_and_resume(options: Options, backend: Backend, state: JobState, timeout: float | None) -> None:
    """Suspend the job until its pods have ended, and resume it. The run and its id do not change."""
    name = state.name
    if state.state not in {State.SUSPENDED, State.LOST}:
        job_results.suspend(backend, name)
        goal = parse_wait_condition("suspended")
        try:
            with show_progress(backend, options) as display:
                wait_for(backend, name, goal, timeout=timeout or _STOP_SECONDS, seen=display.seen)
        except KeyboardInterrupt:
            raise Interrupted(
                f"Interrupted while the pods of job {name} end; it is suspended.",
                hint=f"Resume it with '{program()} resume {name}{location_flags()}'.",
            ) from None
    backend.suspend(name, suspended=False)


def _renew(backend: Backend, name: str) -> str | None:
    """Replace the failed run by a new one, and return its id."""
    from kubectl_ddp.backends.job_recovery import code_of, recover_spec  # noqa: PLC0415 - not needed for help and completion

    spec = recover_spec(backend.job(name).job)
    return _submit_new_run(backend, name, spec, code_of(backend, spec), secrets.token_hex(6))


def _submit_new_run(backend: Backend, name: str, spec: JobSpec, code: Code | None, run_id: str) -> str | None:
    from kubectl_ddp.render import Site, render  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.render.choose import native_version  # noqa: PLC0415
    from kubectl_ddp.values.program import Gang  # noqa: PLC0415

    site = Site.LOCAL if backend.where == "local" else Site.CLUSTER
    spec = dataclasses.replace(spec, egress=backend.effective_egress(spec.egress))
    version = native_version(spec, backend.facts() if spec.gang is Gang.NATIVE else None)
    objects = render(spec, run_id, site=site, code=code, api_servers=backend.api_servers(), native_version=version)
    try:
        backend.recreate(name, objects)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted while job {name} gets a new run.",
            hint=f"'{program()} restart {name}{location_flags()}' finishes it, wherever it is.",
        ) from None
    job_results.record_new_run(backend, name)
    return _run_id(backend, name)


def _run_id(backend: Backend, name: str) -> str | None:
    run: str | None = backend.job(name).job["metadata"]["labels"].get(Label.RUN_ID)
    return run
