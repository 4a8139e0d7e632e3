"""Copies of the first error and the summary in annotations of the job, which outlive its pods.

Commands that read a single job write them: ``status``, ``logs``, ``wait``, ``why``, ``report``, ``bundle``, and
``submit`` that waits. Lists of jobs write nothing, because that would be one write per job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.status.run_summary import text_to_keep
from kubectl_ddp.status.termination_message import load_first_error, to_keep


def persist_result(backend: Backend, job: Object, state: JobState) -> None:
    """Write the first error and the summary to the job's annotations, unless present. Errors are ignored."""
    there = job["metadata"].get("annotations") or {}
    new = {str(name): text for name, text in _result_annotations(job, state) if there.get(name) != text}
    if new:
        with contextlib.suppress(DdpError):
            backend.annotate(job, new)


def _result_annotations(job: Object, state: JobState) -> Iterator[tuple[Annotation, str]]:
    error = state.first_error
    if error is not None and (error.rank is not None or load_first_error(job) is None):
        yield Annotation.FIRST_ERROR, to_keep(error)
    if state.summary is not None:
        yield Annotation.SUMMARY, text_to_keep(state.summary, has_succeeded=state.state is State.SUCCEEDED)
