"""Start and progress of a job from pods that may be gone: its first start, and the pods that a suspension stopped.

Commands keep it in an annotation: the start as soon as it is over (:mod:`kubectl_ddp.observe.result_annotations`), and
start time, restarts, steps and samples before they suspend the job.
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
    is_counted: bool = False
    """True if the pods counted the steps of a script that does not report them. Later pods count from 0."""
    samples: float = 0.0
    """Samples that all ranks had trained until then."""
    seconds: float = 0.0
    """Seconds that they took for them."""

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
            is_counted=told.get("is_counted") is True,
            **{name: told[name] for name in ("samples", "seconds") if isinstance(told.get(name), _NUMBERS)},
        )

    def to_annotation(self) -> str:
        """Return the text of the annotation."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, separators=(",", ":"))

    def total_step(self, step: int | None, uids: Collection[str]) -> int | None:
        """Return the last step of the whole run.

        Args:
            step: Last step that the present pods have reported.
            uids: UIDs of the present pods.
        """
        if self.step is None or not self.is_counted:
            return step
        return max(self.step, step or 0) if self.uid in uids else self.step + (step or 0)

    def total_work(self, samples: float, seconds: float, uids: Collection[str]) -> tuple[float, float]:
        """Return the samples of the whole run, and the seconds for them.

        Args:
            samples: Samples that the present pods have trained.
            seconds: Seconds that they took for them.
            uids: UIDs of the present pods.
        """
        if self.uid in uids:
            return max(self.samples, samples), max(self.seconds, seconds)
        return self.samples + samples, self.seconds + seconds

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
