"""What the launchers of a job see of its ranks, read out of what their pods serve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.common.hanging.rank_status import RankStatus, parse_rank_status
from ddp_trainer.common.safe_text import redact_object
from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import is_running, workers
from kubectl_ddp.parallel import each

VERSION: Final = "ddp.dev/hang/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank as its launcher sees it."""

    look: RankStatus
    pod: str
    pid: int | None
    """None at the metrics port, which shows neither processes nor stacks."""
    usual: float | None
    """Seconds of its longest recent stay where it is; None where its launcher has not learned it yet."""
    stack_from: str
    """``python``, ``py-spy``, or ``/proc`` where there is no stack but what the kernel says; empty for no stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a launcher has said of a hang by itself."""

    time: float
    generation: int
    ranks: tuple[int, ...]
    killed: tuple[int, ...]
    sentences: tuple[str, ...]
    """Empty at the metrics port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """What one launcher shows."""

    pod: str
    generation: int
    on_hang: str
    """``off``: it watches nobody; ``warn``, ``act``."""
    ranks: tuple[RankReport, ...]
    named: tuple[Named, ...]
    ras: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangSnapshot:
    """All of a job at one moment."""

    pods: tuple[PodReport, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    """Pod → why it shows nothing."""

    @property
    def ranks(self) -> tuple[RankReport, ...]:
        """Those of the newest generation, in order; a pod that was left behind shows those of the one before."""
        newest = max((pod.generation for pod in self.pods), default=0)
        told = (rank for pod in self.pods if pod.generation == newest for rank in pod.ranks)
        return tuple(sorted(told, key=lambda rank: rank.look.rank))

    @property
    def named(self) -> tuple[Named, ...]:
        """What launchers have named, each hang once, as it was told last; the oldest first."""
        told = {(each.generation, each.ranks): each for pod in self.pods for each in pod.named}
        return tuple(sorted(told.values(), key=lambda named: named.time))

    @property
    def ras(self) -> str:
        """NCCL's own report; it knows of all ranks, so the first is enough."""
        return next((pod.ras for pod in self.pods if pod.ras), "")


def collect_hang_snapshot(backend: Backend, snapshot: Snapshot) -> HangSnapshot:
    """Ask all pods at once; those that do not answer are told with why."""
    running = [pod for pod in workers(snapshot.pods) if is_running(pod)]
    answers = each(lambda pod: _fetch_pod_report(backend, pod), running)
    silent = {name: answer for name, answer in answers if isinstance(answer, str)}
    return HangSnapshot(pods=tuple(answer for _, answer in answers if isinstance(answer, PodReport)), silent=silent)


def _fetch_pod_report(backend: Backend, pod: Object) -> tuple[str, PodReport | str]:
    name = str(pod["metadata"]["name"])
    try:
        return name, read(name, backend.hang(pod))
    except DdpError as error:  # its launcher is stopped, or a network policy is in the way
        return name, error.message


def read(pod: str, text: str) -> PodReport | str:
    """What a pod shows; a sentence where that is nothing that this version understands."""
    try:
        told = redact_object(json.loads(text))
        if told["version"] != VERSION:
            return f"It shows its ranks in the form {told['version']!r}, and this version reads {VERSION!r}."
        return PodReport(
            pod=pod,
            generation=int(told["generation"]),
            on_hang=str(told["on_hang"]),
            ranks=tuple(_rank(pod, rank) for rank in told["ranks"]),
            named=_named(told["findings"]),
            ras=str(told.get("ras", "")),
        )
    except (ValueError, KeyError, TypeError) as error:
        return f"What it shows of its ranks cannot be read ({error!r})."


def _rank(pod: str, told: Mapping[str, Any]) -> RankReport:
    usual, pid = told["usual"], told.get("pid")
    return RankReport(
        look=parse_rank_status(told),
        pod=pod,
        pid=None if pid is None else int(pid),
        usual=None if usual is None else float(usual),
        stack_from=str(told.get("stack_from", "")),
    )


def _named(told: Sequence[Mapping[str, Any]]) -> tuple[Named, ...]:
    return tuple(
        Named(
            time=float(one["time"]),
            generation=int(one["generation"]),
            ranks=tuple(map(int, one["ranks"])),
            killed=tuple(map(int, one["killed"])),
            sentences=tuple(map(str, one.get("sentences", ()))),
        )
        for one in told
    )
