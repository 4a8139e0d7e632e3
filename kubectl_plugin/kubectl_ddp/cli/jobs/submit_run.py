"""Implementation of ``submit``: prepares the job of the command line, creates it, and prints the result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ddp_trainer.common.constants import Annotation, Label
from ddp_trainer.common.process_start import process_start
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.select import Where, backend_for, cluster_of
from kubectl_ddp.cli.internal.attach import attach_to_job
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.job_lookup import place_of, resource, seconds_of
from kubectl_ddp.cli.internal.job_options import JobRequest, prepare, warn
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.client.layers import random_suffix
from kubectl_ddp.client.submission import Prepared, check_local, create_job, level_of
from kubectl_ddp.errors import Cancelled, DdpError, Interrupted, NotFound, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe import job_results
from kubectl_ddp.observe.waiting import wait_until_deleted
from kubectl_ddp.render import Site
from kubectl_ddp.spec import rules
from kubectl_ddp.spec.job_key import Origin, OriginKind
from kubectl_ddp.spec.serialization import digest
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import pluralize

_REPLACED_SECONDS: Final = 60.0
"""Time that a replaced job may take to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Values of the command's flags other than the job's."""

    follow: bool
    """True to print the logs of all ranks until the job ends."""
    waits: bool
    """True to wait for the end of the job."""
    timeout: str | None
    """Maximum time to wait."""
    dry_run: str
    """``none``, ``client`` or ``server``."""
    preflight: str | None
    """``off``, ``warn`` or ``strict``; None for the value in the environment."""
    build: str | None = None
    """Directory of the Dockerfile to build; empty for the one beside the job file, None to build nothing."""
    replaces: bool = False
    """True to delete an earlier job of the same name."""
    yes: bool = False
    """True to delete it without confirmation if it has not ended."""


def submit_job(options: Options, request: JobRequest, submit_options: SubmitOptions) -> None:
    """Submit the job of a command line. Raises errors of the specification, the backend and the job's end."""
    prepared = prepare(options, request, name_suffix=random_suffix(), shown=submit_options.dry_run == "client")
    if submit_options.build is not None:
        _check_flags(submit_options)  # before the build, which takes minutes
        directory = Path(submit_options.build or _directory_of(request))
        prepared = _with_built_image(prepared, directory, options, builds=submit_options.dry_run == "none")
    submit_prepared(prepared, options, submit_options)


def _directory_of(request: JobRequest) -> str:
    """Return the directory of the job file; the current one without a job file."""
    return os.path.dirname(request.file) if isinstance(request.file, str) else ""  # noqa: PTH120 - '' is not a Path


def _with_built_image(prepared: Prepared, directory: Path, options: Options, *, builds: bool) -> Prepared:
    """Build and push the image of a job, and return the job with the pushed image. Raises DdpError."""
    from kubectl_ddp.client.image_build import build_image  # noqa: PLC0415 - only with --build

    resolved = prepared.resolved
    if prepared.site is Site.LOCAL:
        raise UsageError("--build makes an image, and a job on this machine uses none.", hint="Leave --build out.")
    if directory.is_file():
        raise UsageError(
            f"--build '{directory}' is a file, and a directory is expected.",
            hint="Write --build=. for the current directory, or --build after the script.",
        )
    if resolved.origins["image"].kind not in {
        OriginKind.FLAG,
        OriginKind.FILE,
    }:  # a shared default must not be overwritten
        raise UsageError(
            f"--build does not push to '{prepared.spec.image}', which is a default.",
            hint="Name your repository with --image, or in the job file.",
        )
    if not builds:
        options.print_message("A dry run builds no image.")
        return prepared
    image = build_image(prepared.spec.image, directory)
    options.print_message(f"Image: {image}.")
    origins = {**resolved.origins, "image": Origin(OriginKind.RULE, "--build", "the image that was pushed")}
    spec = dataclasses.replace(prepared.spec, image=image)
    settled = set(rules.warnings(prepared.spec)) - set(rules.warnings(spec))
    warnings = tuple(finding for finding in resolved.warnings if finding not in settled)
    built = dataclasses.replace(resolved, spec=spec, origins=origins, warnings=warnings)
    return dataclasses.replace(prepared, resolved=built)


def submit_prepared(prepared: Prepared, options: Options, submit_options: SubmitOptions) -> None:
    """Submit a prepared job."""
    submitted = process_start() if submit_options.build is None else time.time()
    waits_for_end = submit_options.follow or submit_options.waits
    level, seconds = _check_flags(submit_options)
    left_out = check_local(prepared.spec) if prepared.site is Site.LOCAL else []
    warn(prepared.resolved, options, left_out)
    if prepared.code is not None and prepared.code.files:
        options.print_message(f"Code: {pluralize(prepared.code.files, 'file')}, packed as {prepared.code.hash}.")
    backend, run_id = backend_for(prepared.where), secrets.token_hex(6)
    if submit_options.replaces:
        _check_replacement(backend, prepared.spec.name, options, submit_options)
    if submit_options.dry_run != "none":
        _dry_run(prepared, options, on_server=submit_options.dry_run == "server")
        return

    def replace() -> None:
        if submit_options.replaces:
            _delete_previous(backend, prepared.spec.name, options)

    try:
        prepared = create_job(
            prepared,
            backend,
            run_id,
            submitted=submitted,
            level=level,
            warn=lambda text: options.print_message(f"warning: {text}"),
            before_submit=replace,
        )
        submission = _submission(prepared, backend, submitted)
        _print_submission(submission, options, prepared.where, is_last=not waits_for_end)
    except KeyboardInterrupt:
        raise _interrupted(backend, prepared.spec.name, submitted) from None
    if waits_for_end:
        attach_to_job(backend, submission, options, follows=submit_options.follow, timeout=seconds)


def _check_replacement(backend: Backend, name: str, options: Options, submit_options: SubmitOptions) -> None:
    """Confirm the deletion of a job of the same name that has not ended. A dry run prints it.

    Raises:
        UsageError: If --yes is required, because stdin is not a terminal.
        Cancelled: If the deletion is not confirmed.
    """
    try:
        snapshot = backend.job(name, events=False)
    except NotFound:
        return
    if submit_options.dry_run == "server":
        raise UsageError(
            f"--dry-run=server cannot check job {name} beside the one that it replaces.", hint="Use --dry-run=client."
        )
    if submit_options.dry_run == "client":
        options.print_message(f"Job {name} would be deleted {place_of(backend)} first.")
        return
    state = job_state(snapshot, {}, where=backend.where, with_startup=False)
    if submit_options.yes or state.is_terminal:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"--replace would delete job {name} {place_of(backend)}, which has not ended: {state.state}.",
            hint="Add --yes to delete it, or choose another --name.",
        )
    if not click.confirm(f"Delete job {name} {place_of(backend)} ({state.state}) and everything in it?", err=True):
        raise Cancelled("Nothing was deleted.")


def _delete_previous(backend: Backend, name: str, options: Options) -> None:
    """Delete the job of the same name, if there is one, and wait until it is gone. Raises TimedOut."""
    with contextlib.suppress(NotFound):
        job_results.delete(backend, name)
        wait_until_deleted(backend, name, timeout=_REPLACED_SECONDS)
        options.print_message(f"Job {name} deleted {place_of(backend)}.")


def _check_flags(flags: SubmitOptions) -> tuple[str, float | None]:
    """Return the level of the checks and the maximum wait in seconds. Raises UsageError."""
    return level_of(flags.preflight), _parse_timeout(flags.timeout, waits=flags.follow or flags.waits)


def _interrupted(backend: Backend, name: str, submitted: float) -> Interrupted:
    """Return the error for Ctrl-C during submission, with the information if the job was created."""
    try:
        metadata = backend.job(name, events=False).job["metadata"]
    except DdpError:
        return Interrupted("Interrupted; no job was created.")
    if not _is_of(metadata, submitted) or "deletionTimestamp" in metadata:
        return Interrupted("Interrupted; no job was created.")
    return Interrupted(
        f"Interrupted after job {name} was created; it continues.",
        hint=f"'{program()} delete {name}{location_flags()}' ends it.",
    )


def _parse_timeout(timeout: str | None, *, waits: bool) -> float | None:
    if timeout is not None and not waits:
        raise UsageError(f"--timeout {timeout} limits nothing.", hint="Add --wait or --follow.")
    return seconds_of("--timeout", timeout)


def _dry_run(prepared: Prepared, options: Options, *, on_server: bool) -> None:
    from kubectl_ddp.util.yaml_text import to_json, to_yaml  # noqa: PLC0415 - imports YAML

    objects = _checked_by_server(prepared) if on_server else prepared.objects(prepared.placeholder)
    if options.output in {"json", "yaml"}:
        click.echo(to_json(objects) if options.output == "json" else to_yaml(objects), nl=False)
        return
    suffix = "" if options.output == "name" else f" created ({'server ' if on_server else ''}dry run)"
    for item in objects:
        click.echo(f"{_resource(item)}/{item['metadata']['name']}{suffix}")


def _checked_by_server(prepared: Prepared) -> list[Object]:
    if prepared.site is Site.LOCAL:
        raise UsageError("--dry-run=server asks a cluster, and this job would run here.", hint="Use --dry-run=client.")
    backend = cluster_of(prepared.where)
    return backend.dry_run(prepared.resolve_engine(backend).objects(prepared.placeholder))


def _resource(item: Object) -> str:
    """Return the resource as kubectl prints it, as in ``pytorchjob.kubeflow.org``."""
    group = item["apiVersion"].rpartition("/")[0]
    kind: str = item["kind"].lower()
    return f"{kind}.{group}" if group else kind


def _is_of(metadata: Mapping[str, Any], submitted: float) -> bool:
    """Return whether a job was created by the submission at this time. A controller chooses the run id of a DDPJob."""
    return bool((metadata.get("annotations") or {}).get(Annotation.SUBMITTED) == f"{submitted:.3f}")


def _submission(prepared: Prepared, backend: Backend, submitted: float) -> dict[str, Any]:
    """Return the result as JSON. If the identical job existed, its run is returned and ``created`` is false."""
    spec = prepared.spec
    job = job_results.record_new_run(backend, spec.name)
    metadata = job["metadata"]
    found = metadata["labels"][Label.RUN_ID]
    return {
        "apiVersion": API_VERSION,
        "kind": "Submission",
        "name": spec.name,
        "resource": resource(job).partition("/")[0],
        "namespace": metadata.get("namespace"),
        "where": backend.where,
        "runId": found,
        "created": _is_of(metadata, submitted),
        "digest": digest(spec, prepared.code.text if prepared.code else ""),
    }


def _print_submission(submission: dict[str, Any], options: Options, at: Where, *, is_last: bool) -> None:
    """Print the created job and suggested commands. Data is printed only if no further output follows."""
    name, where = submission["name"], submission["where"]
    if options.output == "name":
        click.echo(f"{submission['resource']}/{name}")
    elif options.output is not None and is_last:
        print_output(submission, options.output)
    outcome = "created" if submission["created"] else "was there already, unchanged,"
    place = "on this machine" if where == "local" else f"in {where}"
    options.print_message(f"Job {name} {outcome} {place}, run {submission['runId']}.")
    if is_last:
        called, to = program(), at.flags
        options.print_message(
            f"  {called} status {name}{to} --ranks   how it goes\n  {called} logs {name}{to} -f          what it writes"
        )
