"""Summary of a finished run, from its pods or from the annotation that outlives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ddp_trainer.common.constants import Annotation, RestartCause
from ddp_trainer.common.safe_text import redact_object
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.status import termination_message

Summary = dict[str, Any]


def outcome(job: Object, workers: Iterable[Object], *, has_succeeded: bool) -> Summary | None:
    """Return the summary of a successful run, or the time account of a failed one; None if unknown.

    If both pods and annotation have one, the more complete one is returned: some pods may be gone.
    """
    pods = [*workers]
    told = termination_message.summary(pods) if has_succeeded else termination_message.account(pods)
    known = [each for each in (told, _stored_summary(job, _result(has_succeeded=has_succeeded))) if each is not None]
    most = max(known, key=len if has_succeeded else termination_message.seconds_of, default=None)
    return _redact_summary(most) if most is not None else None


def restarts_of(summary: Mapping[str, Any]) -> dict[str, int]:
    """Return restarts by cause. Malformed values are skipped, because any program may write the summary."""
    counts = summary.get("restarts")
    told = counts.items() if isinstance(counts, Mapping) else ()
    return {str(cause): count for cause, count in told if isinstance(count, int) and count > 0}


def restart_count(restarts: Mapping[str, int]) -> int:
    """Return the number of restarts of a run. A change of the members is a resize, not a restart.

    >>> restart_count({"failure": 2, "resize": 3}), resize_count({"failure": 2, "resize": 3})
    (2, 3)
    """
    return sum(restarts.values()) - resize_count(restarts)


def resize_count(restarts: Mapping[str, int]) -> int:
    """Return how often the worker group re-formed because nodes came, left or were lost."""
    return restarts.get(RestartCause.RESIZE, 0)


def progress(summary: Mapping[str, Any], *, has_succeeded: bool) -> dict[str, Any]:
    """Return the progress in a summary, as fields of a :class:`~kubectl_ddp.status.job_state.JobState`."""
    steps = summary.get("steps")
    if has_succeeded:
        known = {name: summary.get(name) for name in ("loss", "goodput", "world_size", "generation")}
        return {"step": steps, "steps_planned": steps, **known}
    told = {"step": steps, "steps_planned": summary.get("steps_planned"), "goodput": summary.get("goodput")}
    return {name: value for name, value in told.items() if isinstance(value, int | float)}


def text_to_keep(summary: Mapping[str, Any], *, has_succeeded: bool) -> str:
    """Serialize a summary for the annotation: compact JSON without secrets."""
    told = _redact_summary({**summary, "result": _result(has_succeeded=has_succeeded)})
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _redact_summary(summary: Summary) -> Summary:
    return dict(redact_object(summary))


def _stored_summary(job: Object, result: str) -> Summary | None:
    """Return the summary in the annotation; None if its result differs, as after a restart of a failed job."""
    text = (job["metadata"].get("annotations") or {}).get(Annotation.SUMMARY)
    if text is None:
        return None
    try:
        summary = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) and summary.get("result") == result else None


def _result(*, has_succeeded: bool) -> str:
    return "succeeded" if has_succeeded else "failed"
