"""Jobs as reports draw them: series as pods keep them, of as many ranks and readings as a test wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime, Phase
from kubectl_ddp.report.compose import Report, report
from kubectl_ddp.report.series import POD, Series
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
        each
        for rank in range(ranks)
        for each in a_rank(rank, readings=readings, of_pod=of_pod, slow=1.1 if rank == slow else 1.0)
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


def a_report(series: Sequence[Series], *, error: str = "", name: str = "digits", happened: str = "") -> Report:
    """The report of a job that runs, or that has failed with an error."""
    told = {
        "rank": 1,
        "pod": "digits-worker-1",
        "message": error,
        "stack": f"Traceback\n  {error}",
        "timestamp": START + 9,
    }
    pods = [pod(0), pod(1, terminated(1, told) if error else None)]
    found = snapshot(job("Failed" if error else "Running", metadata={"name": name}), *pods)
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
