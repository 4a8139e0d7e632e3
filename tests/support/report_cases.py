"""Jobs as reports draw them: series as pods keep them, of as many ranks and readings as a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from ddp_report.job_report import Report, report
from ddp_report.series import POD, Series
from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime, Phase
from kubectl_ddp.status.job_state import job_state
from tests.support.kube_objects import CREATED, CREATED_EPOCH, job, pod, snapshot, terminated

START = CREATED_EPOCH
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&"


def times(readings: int) -> list[float]:
    """One reading a second from when the job was created."""
    return [START + index for index in range(readings)]


def counter(name: str, slope: float, readings: int, **labels: str) -> Series:
    """A counter that grows evenly, and begins with the job."""
    return Series(name, times(readings), [slope * index for index in range(readings)], labels)


def a_rank(rank: int, *, readings: int, of_pod: int = 8, slow: float = 1.0) -> Iterator[Series]:
    """Ten steps a second; a tenth of the time waiting, less of it where the rank is slow."""
    whose = {"rank": str(rank), "local_rank": str(rank % of_pod), POD: f"digits-worker-{rank // of_pod}"}
    yield counter(Metric.STEPS, 10, readings, **whose)
    yield counter(Metric.PHASE_SECONDS, 1, readings, **whose)
    yield counter(Metric.PHASE_SECONDS, max(0.0, 1 - 0.9 * slow), readings, **whose, phase=Phase.COMM_EXPOSED)


def a_job(ranks: int = 4, *, readings: int = 60, of_pod: int = 8, slow: int | None = None) -> list[Series]:
    """Series of all pods; rank ``slow`` computes a tenth longer than the others."""
    pods = sorted({f"digits-worker-{rank // of_pod}" for rank in range(ranks)})
    series = [
        item
        for rank in range(ranks)
        for item in a_rank(rank, readings=readings, of_pod=of_pod, slow=1.1 if rank == slow else 1.0)
    ]
    for name in pods:
        series.append(counter(Metric.SAMPLES, 64.0, readings, pod=name))
        series.append(Series(Metric.WORLD_SIZE, times(readings), [float(ranks)] * readings, {POD: name}))
        series.append(Series(Metric.RENDEZVOUS_ROUND, times(readings), [1.0] * readings, {POD: name}))
        for phase, share in ((Phase.FORWARD, 0.3), (Phase.BACKWARD, 0.6), (Phase.COMM_EXPOSED, 0.1)):
            series.append(counter(Metric.PHASE_SECONDS, share, readings, pod=name, phase=phase))
    series.append(Series(Metric.LOSS, times(readings), [2.0 / (1 + at) for at in range(readings)], {POD: pods[0]}))
    for state, share in ((JobTime.PRODUCTIVE, 0.8), (JobTime.STARTUP, 0.15), (JobTime.RESTART, 0.05)):
        series.append(counter(Metric.JOB_TIME, share, readings, pod=pods[0], state=state))
    return series


def a_killed_worker() -> list[Series]:
    """Two pods with two ranks each. Rank 3 is killed at 20.25 s, ranks 0 and 1 train on, and all train again at 31 s.

    The time without training until two ranks continue is 0.5 s.
    """
    seconds = 60
    series = []
    for rank in range(4):
        whose = {"rank": str(rank), "local_rank": str(rank % 2), POD: f"digits-worker-{rank // 2}"}
        stopped = 10 if rank > 1 else 0
        steps = [10.0 * (at if at <= 20 else max(20, at - stopped)) for at in range(seconds)]
        series.append(Series(Metric.STEPS, times(seconds), steps, whose))
    for at, name in enumerate(("digits-worker-0", "digits-worker-1")):
        away = [2.0] * 10 if at == 0 else [0.0] * 10
        world = [4.0] * 21 + away + [4.0] * 29
        rounds = [1.0] * 21 + [2.0 if at == 0 else 1.0] * 10 + [3.0] * 29
        series.append(Series(Metric.WORLD_SIZE, times(seconds), world, {POD: name}))
        series.append(Series(Metric.RENDEZVOUS_ROUND, times(seconds), rounds, {POD: name}))
    whose = {POD: "digits-worker-1"}
    series.append(Series(Metric.FAILURES, times(seconds), [0.0] * 21 + [1.0] * 39, whose | {"reason": "sigkill"}))
    series.append(Series(Metric.LAST_FAILURE, times(seconds), [None] * 21 + [START + 20.25] * 39, whose))
    series.append(Series(Metric.LAST_FAILED_RANK, times(seconds), [None] * 21 + [3.0] * 39, whose))
    lost = [0.0] * 21 + [0.5] * 39
    productive = [at - away for at, away in enumerate(lost)]
    for state, values in ((JobTime.PRODUCTIVE, productive), (JobTime.RESTART, lost)):
        series.append(Series(Metric.JOB_TIME, times(seconds), values, {"state": state, POD: "digits-worker-0"}))
    return series


def a_report(
    series: Sequence[Series],
    *,
    error: str = "",
    name: str = "digits",
    happened: str = "",
    summary: Mapping[str, object] | None = None,
) -> Report:
    """The report of a job that runs, that has failed with an error, or that has ended with a summary."""
    values = {
        "rank": 1,
        "pod": "digits-worker-1",
        "message": error,
        "stack": f"Traceback\n  {error}",
        "timestamp": START + 9,
    }
    pods = [pod(0), pod(1, terminated(1, values) if error else None)]
    word = "Failed" if error else "Running" if summary is None else "Succeeded"
    details = {"name": name} | ({"annotations": {Annotation.SUMMARY: json.dumps(summary)}} if summary else {})
    found = snapshot(job(word, metadata=details), *pods)
    state = job_state(found, {}, where="somewhere")
    events = [
        {
            "involvedObject": {"kind": "Pod", "name": "digits-worker-1"},
            "type": "Warning",
            "reason": "BackOff",
            "message": happened,
            "lastTimestamp": CREATED,
        }
    ] * bool(happened)
    return report(found, state, events, series, now=START + 100, source="Numbers are made up.")
