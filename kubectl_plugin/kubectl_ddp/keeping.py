"""Keeps the first error of a job where it outlives the pods: in an annotation of the job.

Written by the commands that look at one job anyway: ``status``, ``logs``, ``wait``, ``why``, ``bundle``, and ``submit``
that waits. A list of many jobs writes nothing, since looking around must not become a write for every failure.
"""

from __future__ import annotations

import contextlib

from ddp_trainer.contract import Annotation
from kubectl_ddp.backend import Backend, Object
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import kept, to_keep
from kubectl_ddp.state import JobState


def keep_first_error(backend: Backend, job: Object, state: JobState) -> None:
    """Copy the first error to the job, unless it is there; where that is not allowed, or fails, nothing is lost."""
    error = state.first_error
    if error is None or (error.rank is None and kept(job) is not None):
        return
    text = to_keep(error)
    if (job["metadata"].get("annotations") or {}).get(Annotation.FIRST_ERROR) == text:
        return
    with contextlib.suppress(DdpError):
        backend.annotate(job, {Annotation.FIRST_ERROR: text})
