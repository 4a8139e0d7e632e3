"""Metrics of the pods of a job of a thousand healthy ranks, by the catalogue: as pages, and as a history."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, TextIO

from ddp_trainer.common.constants import GroupState
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.metrics.families.family import Family, Kind, Scope
from ddp_trainer.metrics.families.pod_families import FAMILIES

PODS: Final = 125
RANKS_OF_EACH: Final = 8
DAY_SECONDS: Final = 86400
"""The job runs for so long when its history starts."""
RECENT_SECONDS: Final = 3000
"""Age limit of samples in the head of Prometheus' store. A running Prometheus has at least an hour there; older
samples are in blocks."""
NEVER: Final = frozenset(
    {
        *("ddp_rank_stopped", "ddp_exporter_stale_boards", "ddp_gpu_alloc_retries_total", "ddp_gpu_oom_total"),
        *("ddp_skipped_steps_total", "ddp_shm_used_bytes", "ddp_checkpoint_blocking_seconds_total"),
        *(
            Metric.SAMPLED_COMM_EXPOSED,
            "ddp_pod_sampled_comm_exposed_seconds_total",
            Metric.RESTARTS,
            Metric.FAILURES,
            Metric.LAST_FAILURE,
            Metric.LAST_FAILED_RANK,
            Metric.LOST_STEPS,
            Metric.LOST_PROGRESS,
        ),
    }
)
"""Families that are 0 on a job that is well."""
_GROWS: Final = frozenset({Kind.COUNTER, Kind.SUMMARY, Kind.HISTOGRAM})
_POSITIONS: Final = frozenset({Metric.ENQUEUED, Metric.COMPLETED})


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One series, and how its value goes."""

    family: str
    owner: Mapping[str, str]
    """Labels that a scrape adds, for the pod."""
    name: str
    labels: str
    """Inside of the braces, without those of :attr:`owner`."""
    value: str
    """A number; ``@`` for the seconds since the start, ``#`` for the moment."""

    def at(self, moment: int, start: int) -> str:
        """The value at a moment, both Unix times."""
        return self.value.replace("@", str(moment - start)).replace("#", str(moment))


def lines() -> Iterator[SeriesLine]:
    """Every series of the job, pod by pod within a family."""
    for family in FAMILIES:
        owners = {Scope.JOB: 1, Scope.POD: PODS, Scope.RANK: PODS * RANKS_OF_EACH}[family.scope]
        own = [(series.sample, series.labels) for series in family.series()]
        own = own or [(family.name, dict.fromkeys(family.labels, "x"))]
        for owner, (sample, labels) in itertools.product(range(owners), own):
            is_rank = family.scope is Scope.RANK
            pod = owner // RANKS_OF_EACH if is_rank else owner
            all_labels = {MetricLabel.JOB: "large"} | ({MetricLabel.RANK: str(owner)} if is_rank else {}) | labels
            text = ",".join(f'{name}="{value}"' for name, value in all_labels.items())
            yield SeriesLine(family.name, owner_of(pod), sample, text, _value(family, labels))


def owner_of(pod: int) -> dict[str, str]:
    """Return the labels that a PodMonitor adds to each series of a pod."""
    labels = {"namespace": "training", "pod": f"large-worker-{pod}", "node": f"node-{pod}", "container": "trainer"}
    return labels | {"endpoint": "metrics", "instance": f"192.0.2.{pod}:9464", "job": "training/ddp-workers"}


def _value(family: Family, labels: Mapping[str, str]) -> str:
    if family.name in NEVER:
        return "0"
    if family.name == Metric.JOB_TIME and labels[MetricLabel.STATE] != JobTime.PRODUCTIVE:
        return "0"
    if family.name == Metric.GROUP_STATE:
        return "1" if labels[MetricLabel.STATE] == GroupState.RUNNING else "0"
    if family.kind in _GROWS or family.name in _POSITIONS:
        return "@"
    return "#" if family.name.endswith("timestamp_seconds") else "1"


def write_history(out: TextIO, *, start: int, end: int, step: int, lasting: Mapping[str, int]) -> None:
    """Write the samples older than those of :func:`serve_metrics`, one every ``step`` seconds, as OpenMetrics.

    ``lasting`` maps a family to the number of seconds before ``end`` at which it begins.
    """
    for name, group in itertools.groupby(lines(), key=lambda line: line.family):
        moments = range(end - lasting.get(name, 0), end - RECENT_SECONDS, step)
        for line in group:
            labels = ",".join([*(f'{key}="{value}"' for key, value in line.owner.items()), line.labels])
            series = f"{line.name}{{{labels}}}"
            out.writelines(f"{series} {line.at(moment, start - DAY_SECONDS)} {moment}\n" for moment in moments)
    out.write("# EOF\n")


@contextlib.contextmanager
def serve_metrics(*, start: int, step: int, lasting: Mapping[str, int]) -> Iterator[int]:
    """Serve each pod's page at ``/NUMBER`` of a port of this machine; the port.

    The first answer has every family since ``start`` and longer, as ``lasting`` has it, with the moments; the others
    are as of now.
    """
    shown: dict[str, list[SeriesLine]] = {}
    for line in lines():
        shown.setdefault(line.owner["pod"].rpartition("-")[2], []).append(line)
    begun: set[str] = set()

    def text(number: str, now: int) -> Iterator[str]:
        for line in shown[number]:
            if number in begun:
                yield f"{line.name}{{{line.labels}}} {line.at(now, start - DAY_SECONDS)}\n"
                continue
            first = min(start, now - min(lasting.get(line.family, 0), RECENT_SECONDS))
            for moment in range(first, now, step):
                yield f"{line.name}{{{line.labels}}} {line.at(moment, start - DAY_SECONDS)} {moment * 1000}\n"
        begun.add(number)

    class MetricsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = "".join(text(self.path.strip("/"), int(time.time()))).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_: object) -> None:
            """Discard the message."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
