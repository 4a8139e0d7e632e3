"""Results of jobs that outlive their pods: annotations of the job, and the local history of submitted jobs.

Annotations hold the first error, the start and the summary. Commands that read a single job write them: ``status``,
``logs``, ``wait``, ``why``, ``report``, ``bundle``, and ``submit`` that waits. Lists of jobs write nothing, because
that would be one write per job. Commands that stop the pods of a job keep its progress, too.

The history outlives the job. :func:`record_submission` adds a job, and :func:`record_state` updates it whenever a
command sees it. It is one file of JSON lines in the state directory; the last line of a job counts. It has no values of
environment variables, and secrets in arguments are redacted. A history that cannot be written or read is silently left
alone: no command fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import Annotation, Label
from ddp_trainer.common.redacted_objects import redact_object
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.scrape import observe, scrape
from kubectl_ddp.status.job_progress import EarlierPods, sample_totals
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.termination_message import load_first_error, text_to_keep, to_keep, workers

MOST_JOBS: Final = 500
"""Jobs that are kept. The oldest are forgotten."""
_MOST_BYTES: Final = 4 << 20
"""Size from which the file is written again, with one line per job."""
_PAUSE_SECONDS: Final = 10.0
"""Time between two lines of a job in the same state, for commands that wait."""
_LEFT_OUT: Final = frozenset({"apiVersion", "kind", "name", "namespace", "env", "secretEnv", "podTemplate"})
"""Keys of a job that are not kept as settings."""
_NUMBERS: Final = ("step", "loss", "throughput", "values", "restarts", "processes_per_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Entry of the history for one submitted job."""

    uid: str
    name: str
    run: str = ""
    """Run id, as ``submit`` prints it."""
    namespace: str = ""
    where: str = ""
    """``local``, or the context of the cluster."""
    state: str = State.PENDING
    """State when a command saw the job last; ``Deleted`` if it had not ended before its deletion."""
    seen: float = 0.0
    """Unix time of that."""
    created: float | None = None
    seconds: float | None = None
    """Duration in seconds, until the job was seen last."""
    nodes: str = ""
    """Requested number of nodes, as in ``1-4``."""
    processes_per_node: int = 1
    step: int | None = None
    loss: float | None = None
    throughput: float | None = None
    """Samples per second: the mean if the job has ended and measured it, else the last."""
    values: dict[str, float] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of the job file with which it was submitted."""

    @property
    def is_over(self) -> bool:
        """True if its last state is final."""
        return self.state in {State.SUCCEEDED, State.FAILED, State.LOST, DELETED}

    @property
    def program(self) -> str:
        """The program and its arguments."""
        settings = self.settings
        program = settings.get("script") or settings.get("module") or settings.get("command") or ""
        words = [*program] if isinstance(program, list) else [str(program)]
        return " ".join(map(str, [*words, *(settings.get("args") or ())])).strip()


DELETED: Final = "Deleted"
"""State of a job that was deleted before its end."""


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history."""
    return local_jobs_directory(environ).with_name("history.jsonl")


def record_submission(job: Object, state: JobState) -> None:
    """Add a job that this machine has submitted."""
    _append(_record(job, state, find_job(state.uid)))


def record_state(job: Object, state: JobState, *, is_last: bool = False) -> None:
    """Update a job of the history, immediately if this is its last state. Jobs submitted elsewhere are not added."""
    before = find_job(state.uid)
    if before is None:
        return
    record = _record(job, state, before)
    if is_last or record.state != before.state or record.seen > before.seen + _PAUSE_SECONDS:
        _append(record)


def record_deletion(uid: str) -> None:
    """Record that a job is gone. One that had ended keeps its result."""
    record = find_job(uid)
    if record is not None and not record.is_over:
        _append(replace(record, state=DELETED))


def find_job(uid: str) -> JobRecord | None:
    """Return the record of a job; None if it was not submitted from this machine."""
    return _read(uid).get(uid)


def read_history() -> list[JobRecord]:
    """Return all jobs, the newest first."""
    return sorted(_read().values(), key=lambda record: record.created or record.seen, reverse=True)


def _record(job: Object, state: JobState, before: JobRecord | None = None) -> JobRecord:
    """Return the record of a job. A number that is unknown by now keeps its last value."""
    now, summary = time.time(), state.summary or {}
    known = {name: value for name in _NUMBERS if (value := getattr(state, name)) not in (None, {})}
    if isinstance(mean := summary.get("samples_per_second"), int | float):
        known["throughput"] = float(mean)
    if isinstance(loss := summary.get("loss"), int | float):
        known["loss"] = float(loss)
    settings = {key: value for key, value in job_kinds.submitted_spec(job).items() if key not in _LEFT_OUT}
    nodes, seconds = state.nodes, state.duration(now)
    return replace(
        before or JobRecord(uid=state.uid, name=state.name),
        run=str((job["metadata"].get("labels") or {}).get(Label.RUN_ID, "")),
        namespace=state.namespace,
        where=state.where,
        state=str(state.state),
        seen=now,
        created=state.created,
        seconds=before.seconds if seconds is None and before else seconds,
        nodes=str(nodes.minimum) if nodes.minimum == nodes.maximum else f"{nodes.minimum}-{nodes.maximum}",
        settings=redact_object(settings),
        **known,
    )


def _read(uid: str = "") -> dict[str, JobRecord]:
    """Return the jobs by uid, or only those whose lines contain ``uid``. Lines that are not records are skipped."""
    records: dict[str, JobRecord] = {}
    with contextlib.suppress(OSError), history_file().open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _MOST_BYTES))
        for line in file:
            if uid.encode() not in line:
                continue
            with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
                record = JobRecord(**json.loads(line))
                if _has_right_types(record):
                    records[record.uid] = record
    return records


def _has_right_types(record: JobRecord) -> bool:
    """Return whether values that are compared, added or formatted have their types."""
    texts = (record.uid, record.name, record.run, record.namespace, record.where, record.state, record.nodes)
    numbers = (record.created, record.seconds, record.step, record.loss, record.throughput)
    counted = (record.seen, *record.values.values(), *record.restarts.values())
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float | None) for number in numbers)
        and all(isinstance(number, int | float) for number in counted)
        and isinstance(record.settings, dict)
    )


def _append(record: JobRecord) -> None:
    """Add a line by one write, so that lines of two processes do not mix."""
    path = history_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _line(record))
            is_large = os.fstat(descriptor).st_size > _MOST_BYTES
        finally:
            os.close(descriptor)
        if is_large:
            _compact(path)


def _compact(path: Path) -> None:
    """Keep the last line of each of the newest jobs, in half of the size. A line that another process writes meanwhile
    may be lost.
    """
    lines, size = list[bytes](), 0
    for line in map(_line, read_history()[:MOST_JOBS]):
        size += len(line)
        if size > _MOST_BYTES // 2:
            break
        lines.append(line)
    if not lines:
        return  # it could not be read
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(b"".join(reversed(lines)))
    draft.chmod(0o600)
    draft.replace(path)


def _line(record: JobRecord) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n"


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
    scraped, pods = scrape(backend, snapshot), workers(snapshot.pods)
    state = job_state(snapshot, scraped, where=backend.where)
    persist_result(backend, snapshot.job, state)
    if pods and state.state is not State.SUSPENDED and not state.is_terminal:
        first = min(pods, key=lambda pod: str(pod["metadata"]["name"]))
        earlier = _with_startup(snapshot.job, state)
        samples, seconds = earlier.total_work(
            *sample_totals(scraped.values()), {str(pod["metadata"]["uid"]) for pod in pods}
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
