"""Time series of a job from Prometheus' HTTP API (``/api/v1/query_range``)."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ddp_report.series import POD, Series
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.safe_text import clean_text, redact_text
from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.errors import DdpError, NotFound, Unreachable, UsageError
from kubectl_ddp.util.concurrency import map_in_threads

PATIENCE_SECONDS: Final = 30.0
MOST_BYTES: Final = 256 << 20
"""Maximum bytes per response; a thousand ranks need a tenth of it."""
POINTS: Final = 240
"""Samples over the whole time range: two per interval of the page's axis."""
LEAST_STEP_SECONDS: Final = 1.0

_WHERE: Final = ("pod", "instance")
"""Target labels that Prometheus adds; one of them is the pod's name or its address."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query and the metric that it returns."""

    name: str
    by: tuple[str, ...]
    """Labels to keep in addition to the target's."""
    fold: str = "max"
    only: str = ""
    """Additional matcher."""
    of_job: bool = False
    """True if all pods report the same value."""

    def expression(self, selector: str) -> str:
        """Return the PromQL expression."""
        labels = ", ".join(self.by if self.of_job else (*_WHERE, *self.by))
        return f"{self.fold} by ({labels}) ({self.name}{{{selector}{self.only}}})"


_WAITING: Final = f', {MetricLabel.PHASE}="{Phase.COMM_EXPOSED}"'

QUERIES: Final = (
    Query(Metric.STEPS, (MetricLabel.RANK,)),
    Query(Metric.PHASE_SECONDS, (MetricLabel.RANK,), fold="sum"),
    Query(Metric.PHASE_SECONDS, (MetricLabel.RANK, MetricLabel.PHASE), only=_WAITING),
    Query(Metric.PHASE_SECONDS, (MetricLabel.PHASE,), fold="sum"),
    Query(Metric.SAMPLES, (), fold="sum"),
    Query(Metric.LOSS, ()),
    # Of rank 0 alone: with 32 names, a thousand ranks would have more series than all other queries.
    Query(Metric.USER_VALUE, (MetricLabel.NAME, MetricLabel.RANK), only=f', {MetricLabel.RANK}="0"'),
    Query(Metric.WORLD_SIZE, ()),
    Query(Metric.RENDEZVOUS_ROUND, ()),
    Query(Metric.RESTARTS, (MetricLabel.CAUSE,)),
    Query(Metric.FAILURES, (MetricLabel.REASON,)),
    Query(Metric.LAST_FAILURE, ()),
    Query(Metric.LAST_FAILED_RANK, ()),
    Query(Metric.JOB_TIME, (MetricLabel.STATE,), of_job=True),
    Query(Metric.LOST_PROGRESS, (), of_job=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Time range in Unix times."""

    start: float
    end: float

    @property
    def step(self) -> float:
        """Seconds between two samples."""
        return max(LEAST_STEP_SECONDS, (self.end - self.start) / POINTS)


def query_series(url: str, job: str, namespace: str | None, span: TimeRange, pods: Mapping[str, str]) -> list[Series]:
    """Query all series of a job.

    Args:
        url: URL of Prometheus, including its path prefix.
        job: Name of the job, the value of the label ``ddp_job``.
        namespace: Namespace of its pods; None for any, as for a job outside of a cluster.
        span: Time range.
        pods: Pod name by address, for targets without names.

    Raises:
        UsageError: If the URL is invalid.
        Unreachable: If no server answers, or it is not Prometheus.
        NotFound: If Prometheus has no series of the job in that time.
        DdpError: If Prometheus refuses the query.
    """
    place = _place(url)
    selector = f'{MetricLabel.JOB}="{_escaped(job)}"' + (
        f', namespace="{_escaped(namespace)}"' if namespace is not None else ""
    )
    found = [
        series
        for results in map_in_threads(partial(_query_range, place, selector, span, pods), QUERIES)
        for series in results
    ]
    if not any(series.name == Metric.STEPS for series in found):
        hint = "Its pods may not be scraped; 'kubectl ddp doctor' checks. '--from job' uses metrics of the job."
        raise NotFound(f"Prometheus at {redact_url(url)} knows no rank of job '{job}' in that time.", hint=hint)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    base: str
    headers: Mapping[str, str]
    shown: str


def _place(url: str) -> _Place:
    try:
        parts = urllib.parse.urlsplit(url)
        is_sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_sound = False
    if not is_sound:
        raise UsageError(
            f"'{redact_url(url)}' is not the URL of a Prometheus server.",
            hint="Write it as in http://prometheus.example.com:9090.",
        )
    credentials, _, host = parts.netloc.rpartition("@")
    known = urllib.parse.unquote(credentials).encode()
    headers = {"Authorization": f"Basic {base64.b64encode(known).decode()}"} if credentials else {}
    return _Place(f"{parts.scheme}://{host}{parts.path.rstrip('/')}", headers, redact_url(url))


def redact_url(url: str) -> str:
    """Return a URL without its password."""
    return redact_text(url)


def _query_range(place: _Place, selector: str, span: TimeRange, pods: Mapping[str, str], query: Query) -> list[Series]:
    expression = query.expression(selector)
    document = _fetch_json(place, {"query": expression, "start": span.start, "end": span.end, "step": span.step})
    count = int((span.end - span.start) / span.step) + 1
    times = [span.start + span.step * index for index in range(count)]
    try:
        return [_series(query, result, times, span, pods) for result in document["data"]["result"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _no_prometheus(place, "the response is not a JSON object") from error


def _fetch_json(place: _Place, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    url = f"{place.base}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Accept": "application/json", **place.headers})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310 - http and https alone
            document = json.loads(_body(response))
    except urllib.error.HTTPError as error:
        raise _http_error(place, error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(
            f"Prometheus at {place.shown} does not answer: {str(reason) or type(reason).__name__}.",
            hint="'--from job' uses metrics of the job.",
        ) from error
    except ValueError as error:
        raise _no_prometheus(place, "the response is not JSON") from error
    if not isinstance(document, dict):
        raise _no_prometheus(place, "the response is not a JSON object")
    return document


def _body(response: http.client.HTTPResponse) -> bytes:
    """Read a whole response.

    Raises:
        TimeoutError: If it takes too long in total, even if each part arrives in time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    body = bytearray()
    while len(body) < MOST_BYTES and (piece := response.read1(1 << 20)):
        body += piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {PATIENCE_SECONDS:g} s its answer is not complete")
    return bytes(body)


def _http_error(place: _Place, error: urllib.error.HTTPError) -> DdpError:
    try:
        message = json.loads(error.read(1 << 16))["error"]
    except (ValueError, KeyError, TypeError, OSError):
        return _no_prometheus(place, f"it answers with {error.code}")
    return DdpError(f"Prometheus at {place.shown} refuses with {error.code}: {clean_text(str(message))}.")


def _no_prometheus(place: _Place, why: str) -> Unreachable:
    return Unreachable(f"The server at {place.shown} is not Prometheus: {why}.", hint="Check the URL.")


def _series(
    query: Query, result: Mapping[str, Any], times: Sequence[float], span: TimeRange, pods: Mapping[str, str]
) -> Series:
    labels = {str(name): str(value) for name, value in result["metric"].items()}
    where = next((labels[name] for name in _WHERE if labels.get(name)), "")
    where = pods.get(where.rpartition(":")[0].strip("[]"), where)
    values: list[float | None] = [None] * len(times)
    for index, value in _parse_samples(result["values"], span):
        if 0 <= index < len(values):
            values[index] = value
    kept_labels = {name: value for name, value in labels.items() if name in query.by}
    # Prometheus may have started to scrape long after the start of the job.
    return Series(str(query.name), times, values, kept_labels | {POD: where}, is_complete=False)


def _parse_samples(values: Sequence[Sequence[Any]], span: TimeRange) -> Iterator[tuple[int, float]]:
    for moment, value in values:
        yield round((float(moment) - span.start) / span.step), float(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
