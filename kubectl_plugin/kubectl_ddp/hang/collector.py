"""Collection of the ranks' states from their launchers, through the pods' endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ddp_trainer.common.hanging import GroupPosition, RankState, RankStatus
from ddp_trainer.common.redacted_objects import redact_object
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.termination_message import is_running, workers
from kubectl_ddp.util.concurrency import map_in_threads

VERSION: Final = "ddp.dev/hang/v1"
UNDER_TORCHRUN: Final = "The launcher of the job is torchrun, which reports no ranks."


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """State of one rank as reported by its launcher."""

    status: RankStatus
    pod: str
    pid: int | None
    """Process id; None if read from the metrics port, which shows neither processes nor stacks."""
    usual: float | None
    """Seconds of its longest recent stay in this place; None until the launcher has learned it."""
    stack_from: str
    """Source of the stack: ``python``, ``py-spy``, or ``/proc`` (kernel stack only); empty without a stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHang:
    """A hang that a launcher has reported itself."""

    time: float
    generation: int
    ranks: tuple[int, ...]
    killed: tuple[int, ...]
    sentences: tuple[str, ...]
    """Launcher's messages; empty at the metrics port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """Report of one launcher."""

    pod: str
    generation: int
    on_hang: str
    """Mode of ``--on-hang``: ``off`` (no watchdog), ``warn`` or ``act``."""
    ranks: tuple[RankReport, ...]
    named: tuple[ReportedHang, ...]
    ras: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangSnapshot:
    """Reports of all pods of a job at one moment."""

    pods: tuple[PodReport, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    """Reason by pod name for each pod that shows nothing."""

    @property
    def ranks(self) -> tuple[RankReport, ...]:
        """Ranks of the newest generation in order. Reports of pods in an older generation are left out."""
        newest = max((pod.generation for pod in self.pods), default=0)
        ranks = (rank for pod in self.pods if pod.generation == newest for rank in pod.ranks)
        return tuple(sorted(ranks, key=lambda rank: rank.status.rank))

    @property
    def named(self) -> tuple[ReportedHang, ...]:
        """Hangs that launchers reported, oldest first; only the last report of each hang."""
        hangs = {(hang.generation, hang.ranks): hang for pod in self.pods for hang in pod.named}
        return tuple(sorted(hangs.values(), key=lambda named: named.time))

    @property
    def ras(self) -> str:
        """Report of NCCL's RAS. It covers all ranks, so the first one found is returned."""
        return next((pod.ras for pod in self.pods if pod.ras), "")


def collect_hang_snapshot(backend: Backend, snapshot: Snapshot) -> HangSnapshot:
    """Query all pods in parallel; pods that fail to answer are listed with the reason."""
    running = [pod for pod in workers(snapshot.pods) if is_running(pod)]
    if job_kinds.uses_torchrun(snapshot.job):
        return HangSnapshot(pods=(), silent={str(pod["metadata"]["name"]): UNDER_TORCHRUN for pod in running})
    answers = map_in_threads(lambda pod: _fetch_pod_report(backend, pod), running)
    silent = {name: answer for name, answer in answers if isinstance(answer, str)}
    return HangSnapshot(pods=tuple(answer for _, answer in answers if isinstance(answer, PodReport)), silent=silent)


def _fetch_pod_report(backend: Backend, pod: Object) -> tuple[str, PodReport | str]:
    name = str(pod["metadata"]["name"])
    try:
        return name, read(name, backend.hang(pod))
    except DdpError as error:  # its launcher is stopped, or a network policy blocks the port
        return name, error.message


def read(pod: str, text: str) -> PodReport | str:
    """Parse a pod's report; return an error message if this version cannot parse it."""
    try:
        report = redact_object(json.loads(text))
        if report["version"] != VERSION:
            return f"It shows its ranks in the form {report['version']!r}, and this version reads {VERSION!r}."
        return PodReport(
            pod=pod,
            generation=int(report["generation"]),
            on_hang=str(report["on_hang"]),
            ranks=tuple(_rank(pod, rank) for rank in report["ranks"]),
            named=_named(report["findings"]),
            ras=str(report.get("ras", "")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return f"What it shows of its ranks cannot be read ({repr(error)[:200]})."


def _rank(pod: str, entry: Mapping[str, Any]) -> RankReport:
    usual, pid = entry["usual"], entry.get("pid")
    return RankReport(
        status=parse_rank_status(entry),
        pod=pod,
        pid=None if pid is None else int(pid),
        usual=None if usual is None else float(usual),
        stack_from=str(entry.get("stack_from", "")),
    )


def parse_rank_status(fields_by_name: Mapping[str, Any]) -> RankStatus:
    """Return the look in an agent's report. Unknown fields, as of an agent of another version, are ignored.

    Raises:
        ValueError: If a field is missing or has the wrong type.
    """
    try:
        known = {field.name: fields_by_name[field.name] for field in fields(RankStatus) if field.name in fields_by_name}
        limit = known.get("limit")
        return RankStatus(
            **known
            | {"state": RankState(known["state"]), "collectives": tuple(map(str, known.get("collectives", ())))}
            | {name: int(known[name]) for name in ("rank", "local_rank", "sequence", "world") if name in known}
            | {"seconds": float(known["seconds"]), "limit": None if limit is None else float(limit)}
            | {"notice": None if known.get("notice") is None else float(known["notice"])}
            | {"positions": tuple(_position_of(position) for position in known.get("positions", ()))}
            | {
                name: str(known[name])
                for name in ("node", "section", "waits_in", "stage", "place", "stack")
                if name in known
            }
            | {"is_busy": bool(known.get("is_busy", False))}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no look at a rank: {error!r}") from error


def _position_of(fields_by_name: Mapping[str, Any]) -> GroupPosition:
    numbers = {name: int(fields_by_name.get(name, -1)) for name in ("enqueued", "started", "completed")}
    return GroupPosition(group=str(fields_by_name["group"]), **numbers)


def _named(hangs: Sequence[Mapping[str, Any]]) -> tuple[ReportedHang, ...]:
    return tuple(
        ReportedHang(
            time=float(one["time"]),
            generation=int(one["generation"]),
            ranks=tuple(map(int, one["ranks"])),
            killed=tuple(map(int, one["killed"])),
            sentences=tuple(map(str, one.get("sentences", ()))),
        )
        for one in hangs
    )
