"""Stalled worker groups, as reported by the launchers in the metrics of their pods.

:func:`find_stalled_group` reads it; ``status``, ``top`` and ``why`` show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.status.metrics_parser import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledGroup:
    """A worker group in which no rank makes progress."""

    seconds: float
    """Time since any rank made progress."""
    rank: int | None = None
    """First rank that the others wait for; None if no single rank is the cause."""


def find_stalled_group(told: Mapping[str, Samples]) -> StalledGroup | None:
    """Return the stall that all pods of the newest worker group report; None if one of them reports progress.

    Args:
        told: name of a pod → its samples.
    """
    newest = max((_generation(said) for said in told.values()), default=0.0)
    group = [said for said in told.values() if _generation(said) == newest]
    seconds, rank = min(
        ((said.value(Metric.STALLED) or 0.0, said.value(Metric.STALLED_BY)) for said in group),
        key=lambda report: report[0],
        default=(0.0, None),
    )
    return (
        StalledGroup(seconds=seconds, rank=int(rank) if rank is not None and rank >= 0 else None) if seconds else None
    )


def is_reported(told: Mapping[str, Samples]) -> bool:
    """Return whether any pod reports stalls. Launchers of earlier versions do not."""
    return any(said.value(Metric.STALLED) is not None for said in told.values())


def _generation(said: Samples) -> float:
    return said.value(Metric.RENDEZVOUS_ROUND) or 0.0
