"""Seventy-five minutes of two jobs, as Prometheus would have scraped them from every pod.

``gpt`` has four ranks in two pods. Its rank 2 takes three times as long for the forward pass as the others, who wait
for it. At minute 50 rank 1 is killed; a minute later the group re-forms, and does the steps since its last
checkpoint again. A job of the same name, in another namespace, has nothing happen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.metrics.families.family import Family, Kind, Scope
from ddp_trainer.metrics.families.pod_families import FAMILIES, SUMMED, of_pod
from tests.support.prometheus_history import STEP_SECONDS

SECONDS: Final = 4500
KILLED: Final = 3000
OUTAGE_SECONDS: Final = 60
CHECKPOINT_SECONDS: Final = 600
SAMPLES_OF_A_STEP: Final = 8
STEPS_A_SECOND: Final = 2
PLANNED: Final = 20_000
LOST_STEPS: Final = 30
LOST_SECONDS: Final = 15
PODS: Final = 2
RANKS_OF_EACH: Final = 2
SLOW_RANK: Final = 2
SAMPLED_A_SECOND: Final = 0.2
BUSY_SECONDS: Final = 0.1
MFU: Final = 0.4
PEAK_FLOPS: Final = 1e15
RECOMPUTED: Final = 0.3
BUBBLE: Final = 0.2
"""Share of the time of steps in which ranks wait for another stage."""


@dataclass(frozen=True)
class Course:
    """One job."""

    namespace: str
    name: str
    troubled: bool
    """True if it has a slow rank, and loses one."""


GPT: Final = Course("training", "gpt", troubled=True)
NAMESAKE: Final = Course("vision", "gpt", troubled=False)


@dataclass(frozen=True)
class Moment:
    """A series at a moment: whose it is, and how long ago its job began."""

    course: Course
    start: int
    """Unix time at which the history begins."""
    seconds: int
    """Since then."""
    pod: int
    rank: int
    """The first of the pod for what is of a pod, rank 0 for what is of a job."""
    label: str
    """The value of the family's own label, where it has one."""

    @property
    def outage(self) -> int:
        """Seconds without training until now."""
        return min(max(self.seconds - KILLED, 0), OUTAGE_SECONDS) if self.course.troubled else 0

    @property
    def trained(self) -> int:
        """Seconds of training until now."""
        return self.seconds - self.outage

    @property
    def is_down(self) -> bool:
        return 0 < self.outage < OUTAGE_SECONDS

    @property
    def was_killed(self) -> bool:
        return self.outage > 0

    @property
    def is_slow(self) -> bool:
        return self.course.troubled and self.rank == SLOW_RANK

    @property
    def state(self) -> str:
        return "rendezvous" if self.is_down else "running"

    @property
    def saved(self) -> int:
        """Second of the last checkpoint."""
        return self.seconds // CHECKPOINT_SECONDS * CHECKPOINT_SECONDS


def _phase(moment: Moment) -> float:
    shares = {"data_wait": 0.05, "forward": 0.2, "backward": 0.3, "comm_exposed": 0.4, "optimizer": 0.05}
    if moment.is_slow:
        shares |= {"forward": 0.6, "comm_exposed": 0.0}
    return moment.trained * shares.get(moment.label, 0)


def _job_time(moment: Moment) -> float:
    shares = {"productive": 0.9, "data_wait": 0.04, "checkpoint_save": 0.04, "init": 0.02}
    spent = {"restart": 0.5 * moment.outage, "rendezvous": 0.5 * moment.outage}
    return moment.trained * shares.get(moment.label, 0) + spent.get(moment.label, 0)


def _sampled_busy(moment: Moment) -> float:
    return moment.trained * (BUSY_SECONDS * (3 if moment.is_slow else 1)) * SAMPLED_A_SECOND


def _durations(moment: Moment) -> float:
    """All steps took as long; the bucket's label is its bound."""
    return moment.trained * STEPS_A_SECOND * (float(moment.label) >= 1 / STEPS_A_SECOND)


def _begun(moment: Moment) -> float:
    """The slow rank is one collective behind; other groups than the first do nothing."""
    return (moment.trained * STEPS_A_SECOND - moment.is_slow) * (moment.label == "default")


def _once_killed(label: str) -> Callable[[Moment], float]:
    return lambda moment: float(moment.was_killed and moment.label == label)


def _over_ranks(move: Callable[[Moment], float]) -> Callable[[Moment], float]:
    """The sum over the ranks of a pod."""
    return lambda moment: sum(move(replace(moment, rank=moment.rank + local)) for local in range(RANKS_OF_EACH))


def _constant(value: float) -> Callable[[Moment], float]:
    return lambda _: value


GPUS: Final[dict[str, Callable[[Moment], float]]] = {
    "DCGM_FI_DEV_GPU_TEMP": lambda moment: 60 + moment.rank,
    "DCGM_FI_DEV_SM_CLOCK": _constant(1980),
    "DCGM_FI_DEV_POWER_USAGE": _constant(640),
    "DCGM_FI_DEV_XID_ERRORS": lambda moment: 79 * moment.was_killed,
    "DCGM_FI_DEV_THERMAL_VIOLATION": lambda moment: moment.seconds * 1000,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": lambda moment: moment.trained * 1e6,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _constant(0.3),
}
"""Series of DCGM's exporter for each GPU, with the pod and namespace of the exporter."""
MOVES: Final[dict[str, Callable[[Moment], float]]] = {
    "ddp_steps_total": lambda moment: moment.trained * STEPS_A_SECOND,
    "ddp_samples_total": lambda moment: moment.trained * STEPS_A_SECOND * SAMPLES_OF_A_STEP,
    "ddp_step_phase_seconds_total": _phase,
    "ddp_step_duration_seconds_bucket": _durations,
    "ddp_step_duration_seconds_count": lambda moment: moment.trained * STEPS_A_SECOND,
    "ddp_tokens_total": lambda moment: moment.trained * 1000,
    "ddp_model_flops_total": lambda moment: moment.trained * MFU * PEAK_FLOPS,
    "ddp_peak_flops_per_second": _constant(PEAK_FLOPS),
    "ddp_recomputed_flops_ratio": _constant(RECOMPUTED),
    "ddp_step_wait_seconds_total": lambda moment: moment.trained * (BUBBLE if moment.label == "stage" else 0.05),
    "ddp_sampled_steps_total": lambda moment: moment.trained * SAMPLED_A_SECOND,
    "ddp_sampled_busy_seconds_total": _sampled_busy,
    "ddp_sampled_comm_exposed_seconds_total": lambda moment: moment.trained * SAMPLED_A_SECOND / STEPS_A_SECOND / 4,
    "ddp_collective_last_enqueued_sequence": _begun,
    "ddp_collective_last_completed_sequence": lambda moment: max(_begun(moment) - 1, 0),
    "ddp_step": lambda moment: moment.trained * STEPS_A_SECOND - LOST_STEPS * moment.was_killed,
    "ddp_last_step_timestamp_seconds": lambda moment: moment.start + moment.seconds - moment.outage % OUTAGE_SECONDS,
    "ddp_steps_planned": _constant(PLANNED),
    "ddp_loss": lambda moment: 8 / (1 + moment.trained / 600),
    "ddp_job_time_seconds_total": _job_time,
    "ddp_lost_progress_seconds_total": lambda moment: LOST_SECONDS * moment.was_killed,
    "ddp_lost_steps_total": lambda moment: LOST_STEPS * moment.was_killed,
    "ddp_checkpoint_saves_total": lambda moment: moment.saved // CHECKPOINT_SECONDS * (moment.label == "success"),
    "ddp_checkpoint_last_success_timestamp_seconds": lambda moment: moment.start + moment.saved,
    "ddp_checkpoint_interval_seconds": _constant(CHECKPOINT_SECONDS),
    "ddp_rank_stopped": _constant(0),
    "ddp_rank_start_time_seconds": lambda moment: moment.start + moment.outage,
    "ddp_rank_cpu_seconds_total": lambda moment: moment.trained * (2 if moment.is_slow else 1),
    "ddp_worker_group_state": lambda moment: float(moment.label == moment.state),
    "ddp_worker_restarts_total": _once_killed("failure"),
    "ddp_worker_failures_total": _once_killed("sigkill"),
    "ddp_rendezvous_duration_seconds_sum": lambda moment: 3 + 40 * (moment.outage == OUTAGE_SECONDS),
    "ddp_rendezvous_duration_seconds_count": lambda moment: 1 + (moment.outage == OUTAGE_SECONDS),
    "ddp_rendezvous_round": lambda moment: 1 + (moment.outage == OUTAGE_SECONDS),
    "ddp_world_size": _constant(PODS * RANKS_OF_EACH),
    "ddp_nodes": _constant(PODS),
    "ddp_nodes_desired": _constant(PODS + 1),
    "ddp_restarts_remaining": lambda moment: 3 - moment.was_killed,
    "ddp_exporter_stale_boards": _constant(0),
    "ddp_skipped_steps_total": lambda moment: moment.trained // 900,
}
"""Course of each sample. Any other counter grows by 1 in 100 s, and any other gauge is 1."""
ALERTS: Final = (
    {"alertname": "DdpStraggler", "severity": "warning", "rank": str(SLOW_RANK)},
    {"alertname": "DdpExporterStaleBoards", "severity": "warning", "pod": f"{GPT.name}-worker-1"},
)
"""Alerts that fire for ``gpt`` in its last 30 minutes."""


MOVES.update({of_pod(family).name: _over_ranks(MOVES[family.name]) for family in FAMILIES if family.name in SUMMED})


def lines(end: int) -> Iterator[str]:
    """The history as OpenMetrics, up to ``end``."""
    for course in (GPT, NAMESAKE):
        for family in FAMILIES:
            yield from _of_family(course, family, end)
    where = {"namespace": GPT.namespace, "ddp_job": GPT.name, "alertstate": "firing"}
    yield from _of_gpus(GPT, end)
    for alert in ALERTS:
        yield from (f"{_series('ALERTS', alert | where)} 1 {end - ago}" for ago in range(1800, -1, -STEP_SECONDS))


def _of_family(course: Course, family: Family, end: int) -> Iterator[str]:
    own = [(series.sample, series.labels) for series in family.series()] or [(family.name, dict[str, str]())]
    for pod, rank in _owners(family.scope):
        for sample, labels in own:
            report = _identity(course, family, pod, rank) | labels
            move = MOVES.get(sample, _by_kind(family.kind))
            for seconds in range(0, SECONDS + 1, STEP_SECONDS):
                moment = Moment(course, end - SECONDS, seconds, pod, rank, "".join(labels.values()))
                yield f"{_series(sample, report)} {move(moment)} {moment.start + seconds}"


def _of_gpus(course: Course, end: int) -> Iterator[str]:
    for metric, move in GPUS.items():
        for pod, rank in _owners(Scope.RANK):
            report = {"namespace": "gpu-operator", "pod": f"dcgm-exporter-{pod}", "UUID": _gpu(course, rank)}
            for seconds in range(0, SECONDS + 1, STEP_SECONDS):
                moment = Moment(course, end - SECONDS, seconds, pod, rank, "")
                yield f"{_series(metric, report)} {move(moment)} {moment.start + seconds}"


def _gpu(course: Course, rank: int) -> str:
    return f"GPU-{course.namespace}-{rank}"


def _owners(scope: Scope) -> Iterator[tuple[int, int]]:
    """Pod and rank of each that has the family."""
    for pod in range(PODS if scope is not Scope.JOB else 1):
        for local_rank in range(RANKS_OF_EACH if scope is Scope.RANK else 1):
            yield pod, pod * RANKS_OF_EACH + local_rank


def _identity(course: Course, family: Family, pod: int, rank: int) -> dict[str, str]:
    """Labels that Prometheus adds, of every series, and of info families."""
    report = {"namespace": course.namespace, "pod": f"{course.name}-worker-{pod}", "node": f"node-{pod}"}
    report |= {"ddp_job": course.name} | ({"rank": str(rank)} if family.scope is Scope.RANK else {})
    words = {"local_rank": str(rank % RANKS_OF_EACH), "node_rank": str(pod), "backend": "nccl"}
    words |= {"gpu_uuid": _gpu(course, rank)}
    if family.kind is Kind.INFO:
        report |= {label: words.get(label, f"{label}-{rank}") for label in family.labels}
    return report


def _by_kind(kind: Kind) -> Callable[[Moment], float]:
    return _constant(1) if kind in {Kind.GAUGE, Kind.INFO} else lambda moment: moment.trained / 100


def _series(sample: str, labels: dict[str, str]) -> str:
    return sample + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
