"""Creation of a prepared job in its place."""

from __future__ import annotations

from collections.abc import Callable

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.client.submission.preflight import check_before_submit
from kubectl_ddp.client.submission.prepared_job import Prepared, check_devices
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import Site


def create_job(
    prepared: Prepared,
    backend: Backend,
    run_id: str,
    *,
    submitted: float,
    level: str,
    warn: Callable[[str], None],
    before_submit: Callable[[], None] = lambda: None,
) -> Prepared:
    """Create the objects of a job, and return the job with its engine resolved.

    Args:
        prepared: The job.
        backend: Place of the job.
        run_id: Id of the new run.
        submitted: Unix time of the submission, from which the start of the job is measured.
        level: What the checks before it reject: ``off``, ``warn`` or ``strict``.
        warn: Called with each warning of these checks.
        before_submit: Called after the checks, before the first object is created.

    Raises:
        PreflightFailed: If the job cannot run there.
        AlreadyExists: If another object has the name.
    """
    if prepared.site is Site.LOCAL:
        check_devices(prepared.spec)
    prepared = prepared.resolve_engine(backend)
    objects = prepared.objects(run_id)
    job_kinds.root_of(objects)["metadata"]["annotations"][Annotation.SUBMITTED] = f"{submitted:.3f}"
    check_before_submit(backend, prepared, objects, level, warn)
    before_submit()
    backend.submit(objects)
    return prepared
