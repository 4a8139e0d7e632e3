"""Selection of the job and the backend for a command, and the sentence about its change."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import backend_for, backend_to_change, has_kubeconfig, target_backends
from kubectl_ddp.cli.internal.command import JOB_TYPES, Options, check_type
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, epoch
from kubectl_ddp.observe.job_list import read_jobs
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.process import program


def jobs_of(backends: Sequence[Backend], options: Options) -> list[tuple[Backend, Snapshot]]:
    """Return the jobs of these backends, oldest first per backend. If one backend fails, a warning is printed.

    Raises the first error if no job is found.
    """
    return read_jobs(
        backends,
        all_namespaces=options.all_namespaces,
        warn=lambda text: options.print_message(f"warning: {text}"),
    )


def target(options: Options, job: str | None, *, changes: bool = False) -> tuple[Backend, str]:
    """Return the backend and the name of the selected job. Without a name, the newest job is used and printed.

    Args:
        options: Shared flags.
        job: Name of the job, if given.
        changes: True if the command changes the job. Then a name that two places have is rejected.

    Raises:
        NotFound: If no name is given and no job exists.
        UsageError: If two places have a job of this name.
    """
    if job is not None:
        name = parse_job_name(job)
        if changes:
            return backend_to_change(options, name), name
        backend = backend_for(options, name)
        if backend.where == "local" and not options.local and has_kubeconfig():
            options.print_message(f"Job {name} {place_of(backend)}; -n looks in the cluster.")
        return backend, name
    backends = target_backends(options)
    found = jobs_of(backends, options)
    if not found:
        raise no_job(backends, options)
    backend, newest = max(found, key=lambda one: str(one[1].job["metadata"].get("creationTimestamp", "")))
    name = str(newest.job["metadata"]["name"])
    options.print_message(f"Job {name} ({backend.where}), the newest.")
    return backend, name


def no_job(backends: Sequence[Backend], options: Options) -> NotFound:
    """Return the error that no job exists in these places."""
    places = " or ".join(place_of(backend, is_everywhere=options.all_namespaces) for backend in backends)
    return NotFound(f"No job exists {places}.", hint=f"'{program()} submit SCRIPT --local' runs one on this machine.")


def place_of(backend: Backend, *, is_everywhere: bool = False) -> str:
    """Describe a place: ``on this machine``, or ``in namespace 'team' of context 'lab'``."""
    if backend.where == "local":
        return "on this machine"
    namespace = "any namespace" if is_everywhere else f"namespace '{backend.namespace}'"
    return f"in {namespace} of context '{backend.where}'"


def parse_job_name(job: str) -> str:
    """Return the name in ``NAME`` or ``pytorchjob/NAME``. Raises UsageError for another kind."""
    kind, slash, name = job.rpartition("/")
    if slash and kind.lower() not in JOB_TYPES:
        check_type(kind)
        raise UsageError(f"'{kind}' is not a kind of job.", hint=f"Write '{name}' or 'pytorchjob/{name}'.")
    return name


def resource(job: Object) -> str:
    """Return a job in kubectl's notation, as in ``pytorchjob.kubeflow.org/digits``."""
    return f"{job_kinds.engine_of(job).resource}/{job['metadata']['name']}"


def changed(options: Options, backend: Backend, name: str, action: str, what: str = "", **facts: Any) -> None:
    """Print that a job was changed, and its place: a sentence, or with ``-o`` a document or a name.

    Args:
        options: Shared flags.
        backend: Place of the job.
        name: Name of the job.
        action: Change in one word.
        what: End of the sentence (default: the action).
        facts: Further fields of the document.
    """
    if options.output is None:
        click.echo(f"job {name} {what or action} {place_of(backend)}")
    elif options.output == "name":
        click.echo(name)
    else:
        place = {"where": backend.where, "namespace": backend.namespace}
        document = {"apiVersion": API_VERSION, "kind": "JobChange", "name": name, "action": action, **place, **facts}
        print_output(document, options.output)


def warn_of_changed_script(options: Options, job: Object) -> None:
    """Print a warning if a job of this machine reads a script in place, and the script was edited since its submission.

    Creation times have whole seconds, so an edit within a second of the submission is not seen.
    """
    spec, created = job_kinds.submitted_spec(job), epoch(job["metadata"].get("creationTimestamp"))
    script = spec.get("script")
    if created is None or not isinstance(script, str) or "code" in spec:
        return
    with contextlib.suppress(OSError, ValueError):
        if Path(script).stat().st_mtime >= created + 1.0:
            options.print_message(f"warning: '{script}' has changed since job {job['metadata']['name']} was submitted.")


def seconds_of(flag: str, text: str | None) -> float | None:
    """Parse a duration such as ``90``, ``90s`` or ``10m``. Raises UsageError."""
    if text is None:
        return None
    from kubectl_ddp.values.quantity import BadValue, parse_seconds  # noqa: PLC0415 - decimal numbers: 5 ms

    try:
        return float(parse_seconds(text))
    except BadValue as error:
        raise UsageError(f"{flag}: {error.message}.", hint=error.hint) from None
