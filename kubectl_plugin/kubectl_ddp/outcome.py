"""What a run that is over came to: as its pods tell, or as an annotation of the job keeps it, since pods go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.safe_text import redact_object
from kubectl_ddp import evidence
from kubectl_ddp.backend import Object

Summary = dict[str, Any]


def outcome(job: Object, workers: Iterable[Object], *, has_succeeded: bool) -> Summary | None:
    """The summary of a run that has succeeded, or what the time of one that failed went into; None where nobody knows.

    Of pods and annotation the one counts that knows more: some pods may be gone, and the others have seen less.
    """
    pods = [*workers]
    told = evidence.summary(pods) if has_succeeded else evidence.account(pods)
    known = [each for each in (told, _stored_summary(job, _result(has_succeeded=has_succeeded))) if each is not None]
    most = max(known, key=len if has_succeeded else evidence.seconds_of, default=None)
    return _redact_summary(most) if most is not None else None


def restarts_of(summary: Mapping[str, Any]) -> dict[str, int]:
    """Restarts by cause that it counts; any program may have written it."""
    counts = summary.get("restarts")
    told = counts.items() if isinstance(counts, Mapping) else ()
    return {str(cause): count for cause, count in told if isinstance(count, int) and count > 0}


def progress(summary: Mapping[str, Any], *, has_succeeded: bool) -> dict[str, Any]:
    """How far the run got by its summary: fields of a :class:`~kubectl_ddp.state.JobState`."""
    steps = summary.get("steps")
    if has_succeeded:
        known = {name: summary.get(name) for name in ("loss", "goodput", "world_size", "generation")}
        return {"step": steps, "steps_planned": steps, **known}
    told = {"step": steps, "steps_planned": summary.get("steps_planned"), "goodput": summary.get("goodput")}
    return {name: value for name, value in told.items() if isinstance(value, int | float)}


def text_to_keep(summary: Mapping[str, Any], *, has_succeeded: bool) -> str:
    """The annotation of a summary: JSON, as small as the termination message that it comes from, without secrets."""
    told = _redact_summary({**summary, "result": _result(has_succeeded=has_succeeded)})
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _redact_summary(summary: Summary) -> Summary:
    return dict(redact_object(summary))


def _stored_summary(job: Object, result: str) -> Summary | None:
    """That of another end is not of this run: a job that failed may have been let run again."""
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
