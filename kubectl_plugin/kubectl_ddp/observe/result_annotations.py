"""Copies of the first error, the start and the summary in annotations of the job, which outlive its pods.

Commands that read a single job write them: ``status``, ``logs``, ``wait``, ``why``, ``report``, ``bundle``, and
``submit`` that waits. Lists of jobs write nothing, because that would be one write per job. Commands that stop the pods
of a job keep its progress, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.job_history import find_job, record_deletion, record_state, record_submission
from kubectl_ddp.observe.scrape import observe, scrape
from kubectl_ddp.status.earlier_pods import EarlierPods
from kubectl_ddp.status.job_progress import trained_samples
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.run_summary import text_to_keep
from kubectl_ddp.status.termination_message import load_first_error, to_keep, workers


def record_new_run(backend: Backend, name: str) -> Object:
    """Add a job that was just created to the history of this machine, and return its root object."""
    snapshot = backend.job(name, events=False)
    record_submission(snapshot.job, job_state(snapshot, {}, where=backend.where, with_startup=False))
    return snapshot.job


def delete(backend: Backend, name: str) -> None:
    """Delete a job, and keep its last state in the history of this machine. Raises the errors of the backend."""
    uid = ""
    with contextlib.suppress(DdpError):
        snapshot = backend.job(name, events=False)
        uid = str(snapshot.job["metadata"].get("uid", ""))
        if find_job(uid) is not None:
            record_state(snapshot.job, observe(backend, snapshot), is_last=True)
    backend.delete(name)
    record_deletion(uid)


def persist_result(backend: Backend, job: Object, state: JobState) -> None:
    """Write the first error and the summary to the job's annotations, unless present, and update the history of this
    machine. Errors are ignored.
    """
    record_state(job, state)
    there = job["metadata"].get("annotations") or {}
    new = {str(name): text for name, text in _result_annotations(job, state) if there.get(name) != text}
    if new:
        with contextlib.suppress(DdpError):
            backend.annotate(job, new)


def suspend(backend: Backend, name: str) -> None:
    """Suspend a job, after its start and progress were kept. Raises the errors of the backend."""
    snapshot = backend.job(name)
    told, pods = scrape(backend, snapshot), workers(snapshot.pods)
    state = job_state(snapshot, told, where=backend.where)
    persist_result(backend, snapshot.job, state)
    if pods and state.state is not State.SUSPENDED and not state.is_terminal:
        first = min(pods, key=lambda pod: str(pod["metadata"]["name"]))
        earlier = _with_startup(snapshot.job, state)
        samples, seconds = earlier.total_work(
            *trained_samples(told.values()), {str(pod["metadata"]["uid"]) for pod in pods}
        )
        known = replace(
            earlier,
            uid=str(first["metadata"]["uid"]),
            started=state.started,
            restarts=state.restarts,
            step=state.step,
            is_counted=state.steps_planned is None,
            samples=round(samples, 3),
            seconds=round(seconds, 3),
        )
        with contextlib.suppress(DdpError):
            backend.annotate(snapshot.job, {Annotation.EARLIER: known.to_annotation()})
    backend.suspend(name, suspended=True)


def _with_startup(job: Object, state: JobState) -> EarlierPods:
    """Return what is kept of earlier pods, with the start of the job once it is over."""
    earlier, startup = EarlierPods.of(job), state.startup
    if earlier.startup or startup is None or not startup.is_over:
        return earlier
    return replace(earlier, startup=startup.to_summary())


def _result_annotations(job: Object, state: JobState) -> Iterator[tuple[Annotation, str]]:
    if (known := _with_startup(job, state)) != EarlierPods.of(job):
        yield Annotation.EARLIER, known.to_annotation()
    error = state.first_error
    if error is not None and (error.rank is not None or load_first_error(job) is None):
        yield Annotation.FIRST_ERROR, to_keep(error)
    if state.summary is not None:
        yield Annotation.SUMMARY, text_to_keep(state.summary, has_succeeded=state.state is State.SUCCEEDED)
