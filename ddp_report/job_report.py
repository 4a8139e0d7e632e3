"""Report of a job: its summarized series, facts and events from the backend, and the file that it is written to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ddp_report.series import Series
from ddp_report.story import summarize_run, worker_end
from ddp_report.time_series import LOST, Change, JobTimeSeries, Kind, WorkerFailure, summarize_series
from ddp_trainer.common.constants import Annotation, Label
from ddp_trainer.common.redacted_objects import redact_object
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.common.time_classes import JobTime
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, Forbidden
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, main_container
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.describe import values_text
from kubectl_ddp.status.job_progress import EarlierPods
from kubectl_ddp.status.job_state import FirstError, JobState
from kubectl_ddp.status.termination_message import load_first_error, workers
from kubectl_ddp.status.timeline import WARNING, TimelineEvent
from kubectl_ddp.status.timeline import history as happenings_of
from kubectl_ddp.util.text_table import pluralize

MOST_HAPPENINGS: Final = 200
"""Maximum number of events; the latest are kept. A job that fails all night has thousands."""
MOST_CHANGES: Final = 80
"""Maximum number of changes on the time axis."""

Fact = tuple[str, str]
"""Name and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Data of one job's report."""

    state: JobState
    made: float
    """Unix time at which the data was collected."""
    source: str
    """Source of the numbers, as words."""
    measured: JobTimeSeries | None
    earlier: EarlierPods
    """Reports of the pods before the last suspension."""
    story: tuple[str, ...]
    """One to three sentences; empty if nothing is known."""
    facts: tuple[Fact, ...]
    happenings: tuple[TimelineEvent, ...]
    happenings_left_out: int
    changes: tuple[Change, ...]
    nodes: Mapping[str, str]
    """Pod → its node."""
    error: FirstError | None
    """First failure; for a run that continued, the last failure that it recovered from."""

    @property
    def seconds_by_state(self) -> Mapping[str, float]:
        """Seconds by state, and lost progress, from the job's summary if it has ended, else from its pods."""
        summary = self.state.summary or {}
        spent = _numbers(summary.get("spent"))
        if not spent:
            return self.measured.spent if self.measured is not None else {}
        lost = _numbers({LOST: summary.get("lost_seconds")})
        return spent | {name: seconds for name, seconds in lost.items() if seconds > 0}

    @property
    def goodput(self) -> float | None:
        """Share of the time with pods that was spent on committed steps; None if unknown."""
        reported = _numbers({"goodput": (self.state.summary or {}).get("goodput")})
        if reported:
            return reported["goodput"]
        spent = self.seconds_by_state
        total = sum(seconds for state, seconds in spent.items() if state not in {LOST, JobTime.SUSPENDED})
        useful = spent.get(JobTime.PRODUCTIVE, 0.0) - spent.get(LOST, 0.0)
        return max(0.0, useful) / total if total > 0 else None

    @property
    def throughput(self) -> float | None:
        """Current samples per second while the job runs, else the mean over the time with samples of the whole run."""
        if self.state.throughput is not None:
            return self.state.throughput
        parts = [self.measured.training_totals] if self.measured is not None else []
        if self.state.was_suspended:
            parts.append((self.earlier.samples, self.earlier.seconds))
        samples, seconds = sum(part[0] for part in parts), sum(part[1] for part in parts)
        return samples / seconds if samples > 0 and seconds > 0 else None

    @property
    def evaluation_metrics(self) -> Mapping[str, float]:
        """Metrics of the evaluation at the end, such as the accuracy, without the loss."""
        return {
            name: value for name, value in _numbers((self.state.summary or {}).get("metrics")).items() if name != "loss"
        }

    @property
    def samples(self) -> Mapping[str, int]:
        """Samples that were lost, and repeated, if the summary of the run contains them."""
        names = {"samples_lost": "lost", "samples_repeated": "repeated"}
        counts = _numbers({name: (self.state.summary or {}).get(name) for name in names})
        return {names[name]: int(count) for name, count in counts.items()}

    @property
    def loss(self) -> float | None:
        """Last reported training loss; for an ended job, the loss of its summary."""
        if self.state.loss is not None:
            return self.state.loss
        known = [value for value in self.measured.loss if value is not None] if self.measured is not None else []
        return known[-1] if known else None


def report(
    snapshot: Snapshot, state: JobState, events: Iterable[Object], series: Sequence[Series], *, now: float, source: str
) -> Report:
    """Return the report data of a job; pure."""
    numbers = summarize_series(series)
    happened = happenings_of(snapshot, events)
    error = state.first_error or load_first_error(snapshot.job)
    return Report(
        state=state,
        made=now,
        source=source,
        measured=numbers,
        earlier=EarlierPods.of(snapshot.job),
        story=summarize_run(state, numbers, error),
        facts=tuple(_facts(snapshot, state, numbers)),
        happenings=tuple(happened[-MOST_HAPPENINGS:]),
        happenings_left_out=max(0, len(happened) - MOST_HAPPENINGS),
        changes=tuple(_changes(numbers, happened, error))[-MOST_CHANGES:],
        nodes={str(pod["metadata"]["name"]): str(pod["spec"].get("nodeName", "")) for pod in workers(snapshot.pods)},
        error=error,
    )


def _facts(snapshot: Snapshot, state: JobState, numbers: JobTimeSeries | None) -> Iterator[Fact]:
    job, spec = snapshot.job, job_kinds.submitted_spec(snapshot.job)
    kind = job_kinds.kind_of(job)
    metadata = job["metadata"]
    low, high = state.nodes.minimum, state.nodes.maximum
    yield "Program", clean_text(" ".join(redact_object(_program(spec))))
    yield "Image", ", ".join(sorted(_images(snapshot)))
    is_local = state.where == "local"
    yield "Engine", f"{kind.name} ({kind.kind})" if kind is not None and not is_local else ""
    yield "Where", state.where + (f", namespace {state.namespace}" if state.namespace else "")
    yield "Pods", f"{low} to {high}" if low < high else str(high)
    yield "Processes of a pod", str(state.processes_per_node)
    yield "World sizes", _sizes(state, numbers)
    yield "Generations", str(state.generation) if state.generation is not None else ""
    past = numbers.user_values if numbers is not None else {}
    yield "Values", values_text({name: value.last for name, value in past.items()} | state.values)
    yield "Fabric", str(spec.get("fabric") or "")
    if not is_local:
        yield "Digest", str((metadata.get("annotations") or {}).get(Annotation.DIGEST, ""))
    yield "Run", str((metadata.get("labels") or {}).get(Label.RUN_ID, ""))
    if not is_local:
        yield "UID", state.uid


def _program(spec: Mapping[str, Any]) -> list[str]:
    program = spec.get("script") or (f"-m {spec['module']}" if spec.get("module") else "") or spec.get("command") or ""
    words = [program] if isinstance(program, str) else [str(word) for word in program]
    return [*filter(None, words), *map(str, spec.get("args") or ())]


def _images(snapshot: Snapshot) -> set[str]:
    found = {
        str(container["image"])
        for pod in workers(snapshot.pods)
        for container in pod["spec"].get("containers") or ()
        if container["name"] == main_container(pod) and container.get("image")
    }
    image = job_kinds.submitted_spec(snapshot.job).get("image")
    return found or ({str(image)} if image else set())


def _sizes(state: JobState, numbers: JobTimeSeries | None) -> str:
    sizes = numbers.worlds if numbers is not None else ()
    if not sizes and state.world_size is not None:
        sizes = (state.world_size,)
    return ", then ".join(f"{size}" for size in sizes[-12:]) + (" ranks" if sizes else "")


def _changes(
    numbers: JobTimeSeries | None, happened: Iterable[TimelineEvent], error: FirstError | None
) -> list[Change]:
    """Return the marks on the time axis: changes of the group, container failures, and the first error."""
    found = [*(numbers.changes if numbers is not None else ())]
    found += [_failure_change(failure) for failure in (numbers.failures if numbers is not None else ())]
    found += [
        Change(one.timestamp, Kind.FAILURE, f"{one.object}: {one.message or one.reason}", one.reason)
        for one in happened
        if one.type == WARNING and one.timestamp
    ]
    if error is not None and error.timestamp:
        who = f"rank {error.rank}" if error.rank is not None else error.pod
        label = f"{who} {worker_end(error.reason).removeprefix('was ')}" if error.rank is not None else "failure"
        found.append(Change(error.timestamp, Kind.FAILURE, f"first error, {who}: {error.message}", label))
    return sorted(found, key=lambda one: one.time)


def _failure_change(failure: WorkerFailure) -> Change:
    who = f"rank {failure.rank}" if failure.rank is not None else "a worker"
    did = worker_end(failure.reason)
    others = f", and {pluralize(failure.count - 1, 'other worker')} with it" if failure.count > 1 else ""
    text = f"{who} on {failure.pod} {did} ({failure.reason.replace('_', ' ')}){others}"
    return Change(failure.time, Kind.FAILURE, text, f"{who} {did.removeprefix('was ')}")


def _numbers(values: object) -> dict[str, float]:
    """Return the finite, non-negative numbers of an untrusted mapping."""
    if not isinstance(values, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    }


_MARGIN_SECONDS: Final = 30.0
"""Seconds after the job's end to include in the query, for the samples of the last scrape."""


def report_of(backend: Backend, name: str, *, url: str | None = None, warn: Callable[[str], None]) -> Report:
    """Return the report of a job.

    Args:
        backend: Place of the job.
        name: Name of the job.
        url: Prometheus server to read the numbers from (default: the pods of the job have kept them).
        warn: Called with a warning if events cannot be read.

    Raises:
        NotFound: If the job does not exist.
    """
    snapshot = backend.job(name, events=False)
    events = _events(backend, name, warn)
    state = observe(backend, replace(snapshot, events=tuple(events)))
    persist_result(backend, snapshot.job, state)
    now = time.time()
    series, words = _series(backend, snapshot, state, url, now)
    return report(snapshot, state, events, series, now=now, source=words)


def save_report(text: str, path: Path) -> None:
    """Write a page to a file that only its owner can read. Raises DdpError.

    Errors and events of a job may contain confidential text.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DdpError(f"'{path}' cannot be written: {error.strerror}.", hint="Name another file.") from error


def _events(backend: Backend, name: str, warn: Callable[[str], None]) -> list[Object]:
    try:
        return backend.events(name)
    except Forbidden as error:
        warn(f"The page has no events, and takes what happened from the objects alone: {error.message}")
        return []


def _series(
    backend: Backend, snapshot: Snapshot, state: JobState, url: str | None, now: float
) -> tuple[list[Series], str]:
    """Return the series, and their origin as a sentence."""
    if url is None:
        from ddp_report.series import load_series  # noqa: PLC0415

        return load_series(backend, snapshot), "Numbers are those that the pods of the job have kept themselves."
    from ddp_report.prometheus import TimeRange, query_series, redact_url  # noqa: PLC0415

    start = state.created if state.created is not None else now - 86_400
    span = TimeRange(start=start, end=max(start + 1, min(now, (state.finished or now) + _MARGIN_SECONDS)))
    namespace = state.namespace if backend.where != "local" else None
    pods = {
        str(pod.get("status", {}).get("podIP") or ""): str(pod["metadata"]["name"]) for pod in workers(snapshot.pods)
    }
    return query_series(
        url, state.name, namespace, span, pods
    ), f"Numbers are those of Prometheus at {redact_url(url)}."
