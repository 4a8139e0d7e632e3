"""Start and progress of a job from pods that may be gone: its first start, and the pods that a suspension stopped.

Commands keep it in an annotation: the start as soon as it is over (:mod:`kubectl_ddp.observe.result_annotations`), and
start time, restarts and steps before they suspend the job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube.objects import Object

_NUMBERS: Final = (int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPods:
    """What earlier pods of a job reported. Its default is nothing."""

    startup: dict[str, float] = field(default_factory=dict)
    """Start of the job, as in its summary; empty if unknown."""
    started: float | None = None
    """Unix time at which the job started for the first time, until then."""
    uid: str = ""
    """UID of the first of the pods that a suspension stopped; empty without one. While it is there, it still counts."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by cause until then."""
    step: int | None = None
    """Last step until then."""

    @classmethod
    def of(cls, job: Object) -> Self:
        """Return what the annotation of a job says. A malformed one counts as missing, since users may write it."""
        try:
            told = json.loads((job["metadata"].get("annotations") or {}).get(Annotation.EARLIER, "{}"))
        except (ValueError, RecursionError, TypeError):
            return cls()
        if not isinstance(told, dict):
            return cls()
        step, started = told.get("step"), told.get("started")
        return cls(
            startup={name: value for name, value in _map(told.get("startup")).items() if isinstance(value, _NUMBERS)},
            started=started if isinstance(started, _NUMBERS) else None,
            uid=str(told.get("uid") or ""),
            restarts={cause: count for cause, count in _map(told.get("restarts")).items() if isinstance(count, int)},
            step=step if isinstance(step, int) else None,
        )

    def to_annotation(self) -> str:
        """Return the text of the annotation."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, separators=(",", ":"))

    def total_restarts(self, counted: Mapping[str, int], uids: Collection[str]) -> dict[str, int]:
        """Return the restarts of the whole run by cause.

        Args:
            counted: Restarts that the present pods have counted.
            uids: UIDs of the present pods.
        """
        causes = {**self.restarts, **counted}
        if self.uid in uids:
            return {cause: max(self.restarts.get(cause, 0), counted.get(cause, 0)) for cause in causes}
        return {cause: self.restarts.get(cause, 0) + counted.get(cause, 0) for cause in causes}


def _map(value: object) -> dict[str, Any]:
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}
