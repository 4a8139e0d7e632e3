"""What ended pods say about a run: the first error, or the summary; and whose fault a failure was.

The launcher writes one JSON object into the termination message of its pod. Other programs write what they like. Pods
go, and what they said with them; so the first error is kept in an annotation of the job
(:mod:`kubectl_ddp.result_annotations`), and so is what the run came to (:mod:`kubectl_ddp.outcome`).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ddp_trainer.common.constants import Annotation, Exit, FailureReason, Label, Role
from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.backend import Object

_LAUNCHERS: Final = frozenset({Exit.DO_NOT_RESTART, Exit.NOT_FIT})
"""Codes below 128 that the launcher chose itself."""

KEPT_CHARACTERS: Final = 4_000
"""Of a message or a stack that is kept in an annotation; an object may hold 256 KiB of them, and is read often."""

USER_REASONS: Final = frozenset(
    {
        FailureReason.PYTHON_EXCEPTION,
        FailureReason.IMPORT_ERROR,
        FailureReason.GPU_OOM,
        FailureReason.EARLY_EXIT,
    }
)
"""Failures that another machine would not have prevented."""


_ACCOUNT: Final = (
    *(
        "result",
        "steps",
        "steps_planned",
        "restarts",
        "goodput",
        "largest_badput",
        "lost_steps",
        "lost_seconds",
        "spent",
        "seconds",
    ),
    "started",
)
"""What the end of a run that failed has in common with the summary of one that did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstError:
    """The error that came first, of any rank."""

    pod: str
    message: str
    """One sentence, or the exception's own words."""
    rank: int | None = None
    exit_code: int | None = None
    """Of the worker process; 128 + n for signal n."""
    pod_exit_code: int | None = None
    reason: str = ""
    """A :class:`~ddp_trainer.common.constants.FailureReason`, where it is known."""
    stack: str = ""
    timestamp: float | None = None
    generation: int | None = None
    """Number of the worker group that it ended, where it is known."""
    place: str = ""
    """Of the rank in the layout of the job, in words; empty where there is none."""
    host: str = ""
    """Kubernetes node that the pod ran on; empty where the launcher did not report it."""

    @property
    def location(self) -> str:
        """Rank and pod, or the pod where nobody knows the rank."""
        if self.rank is None:
            return self.pod
        return f"rank {self.rank}{f' ({self.place})' if self.place else ''} on {self.pod}"

    @property
    def subject(self) -> str:
        """The same, where a sentence begins with it."""
        return f"Pod {self.pod}" if self.rank is None else f"R{self.location[1:]}"

    @property
    def is_users(self) -> bool:
        """Whether the user's code failed, and not what it ran on."""
        if self.reason in USER_REASONS:
            return True
        code = self.pod_exit_code if self.pod_exit_code is not None else self.exit_code
        return (
            code is not None and 0 < code < Exit.SIGNAL_BASE and code not in _LAUNCHERS and not self._has_known_reason
        )

    @property
    def _has_known_reason(self) -> bool:
        """Whether somebody who knows gave another reason."""
        return self.reason not in {"", FailureReason.OTHER}


@dataclass(frozen=True, slots=True)
class _TerminatedContainer:
    pod: str
    exit_code: int
    message: str

    @property
    def parsed_message(self) -> Mapping[str, Any]:
        """The launcher's JSON; empty when the message is something else."""
        try:
            document = json.loads(self.message)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def is_error(self) -> bool:
        """Whether something went wrong; a pod that was told to stop, and says nothing else, did as it was told."""
        return self.exit_code != 0 and (self.exit_code != Exit.TERMINATED or "message" in self.parsed_message)

    @property
    def is_success(self) -> bool:
        """Whether it says what the run came to; a pod may be stopped while it leaves a run that is complete."""
        return self.exit_code == 0 or self.parsed_message.get("result") == "succeeded"


def workers(pods: Iterable[Object]) -> list[Object]:
    """The worker pods among them."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(Label.ROLE) == Role.WORKER]


def stores(pods: Iterable[Object]) -> list[Object]:
    """The rendezvous store's pods among them."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(Label.ROLE) == Role.STORE]


def is_running(pod: Object) -> bool:
    """Whether a container of it runs."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any("running" in (status.get("state") or {}) for status in statuses)


def crash_message(pod: Object) -> str:
    """Why a container that waits to be started again ended before, in its own last words; empty when it does not."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        before = (status.get("lastState") or {}).get("terminated") or {}
        if "waiting" in (status.get("state") or {}) and before.get("exitCode"):
            name = str(pod["metadata"]["name"])
            return _inferred_error(
                _TerminatedContainer(name, int(before["exitCode"]), before.get("message") or "")
            ).message
    return ""


def first_error(pods: Iterable[Object]) -> FirstError | None:
    """The earliest error that an ended worker pod tells of."""
    failed = [ending for ending in _endings(pods) if ending.is_error]
    told = [_reported_error(ending) for ending in failed if "message" in ending.parsed_message]
    by_rank = [error for error in told if error.rank is not None]
    # One that names a rank saw it happen; the others tell how their pod came to know.
    candidates = by_rank or told or [_inferred_error(ending) for ending in failed]
    return min(candidates, key=lambda error: error.timestamp or float("inf"), default=None)


def error_of(pod: str, exit_code: int, message: str) -> FirstError:
    """Return the error that a pod's termination message reports; by its exit code where the message is cut off."""
    ending = _TerminatedContainer(pod, exit_code, message)
    if "message" in ending.parsed_message:
        return _reported_error(ending)
    return _inferred_error(_TerminatedContainer(pod, exit_code, "" if message.startswith("{") else message))


def failed_ranks(first: FirstError | None, pods: Iterable[Object]) -> tuple[int, ...]:
    """Every rank that the ends of worker pods name, and that of the first error; none where nothing failed.

    Each pod tells of the first of its own ranks that failed, so of several on one pod one is known.
    """
    if first is None:
        return ()
    told = (
        _reported_error(ending) for ending in _endings(pods) if ending.is_error and "message" in ending.parsed_message
    )
    return tuple(sorted({error.rank for error in (first, *told) if error.rank is not None}))


def load_first_error(job: Object) -> FirstError | None:
    """The first error as the job's annotation keeps it; None where there is none, or it is not ours to read."""
    text = (job["metadata"].get("annotations") or {}).get(Annotation.FIRST_ERROR, "")
    ending = _TerminatedContainer("", 0, text)
    return _reported_error(ending) if "message" in ending.parsed_message else None


def to_keep(error: FirstError) -> str:
    """An error as the annotation holds it: JSON, its stack cut in the middle, so that objects stay small."""
    document = {name: value for name, value in asdict(error).items() if value not in {None, ""}}
    document |= {"message": _truncate(error.message), "stack": _truncate(error.stack)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _truncate(text: str) -> str:
    half = (KEPT_CHARACTERS - 1) // 2
    return text if len(text) <= KEPT_CHARACTERS else f"{text[:half]}…{text[-half:]}"


def resolve_first_error(job: Object, pods: Iterable[Object]) -> FirstError | None:
    """The first error that is known of: what pods tell, or what was kept of pods that told more.

    A rank's own words go before what is only known of a pod; of two ranks' words those of the later worker group do,
    since a run that went on had recovered from the earlier.
    """
    told, before = first_error(pods), load_first_error(job)
    if told is None or before is None:
        return told or before
    if told.rank is None and before.rank is not None:
        return before
    return before if (before.generation or 0) > (told.generation or 0) else told


def _clean(text: str) -> str:
    """Without secrets and controls: an error is shown, kept in an annotation and sent on, and may quote a key."""
    return clean_text(text) if text else text


def _reported_error(ending: _TerminatedContainer) -> FirstError:
    document = ending.parsed_message
    rank, code, moment, generation = (document.get(key) for key in ("rank", "exit_code", "timestamp", "generation"))
    pod_code = document.get("pod_exit_code") if not ending.pod else ending.exit_code
    return FirstError(
        pod=_clean(str(document.get("pod") or ending.pod)),
        message=_clean(str(document["message"]).strip()),
        rank=rank if isinstance(rank, int) else None,
        exit_code=code if isinstance(code, int) else None,
        pod_exit_code=pod_code if isinstance(pod_code, int) else None,
        reason=_clean(str(document.get("reason") or "")),
        stack=_clean(str(document.get("stack") or "")),
        timestamp=float(moment) if isinstance(moment, int | float) else None,
        generation=generation if isinstance(generation, int) else None,
        place=_clean(str(document.get("place") or "")),
        host=_clean(str(document.get("host") or "")),
    )


def _inferred_error(ending: _TerminatedContainer) -> FirstError:
    lines = [line for line in _clean(ending.message).splitlines() if line.strip()]
    # The last line of a program that a signal ended is not about its end.
    is_told = bool(lines) and ending.exit_code < Exit.SIGNAL_BASE
    return FirstError(
        pod=ending.pod,
        message=lines[-1].strip() if is_told else describe_exit_code(ending.exit_code),
        exit_code=ending.exit_code,
        pod_exit_code=ending.exit_code,
        stack="\n".join(lines) if len(lines) > 1 else "",
    )


def describe_exit_code(exit_code: int) -> str:
    """An exit code in words.

    >>> describe_exit_code(137), describe_exit_code(3)
    ('killed by SIGKILL', 'exited with code 3')
    """
    words = {
        int(Exit.DO_NOT_RESTART): "gave up: its restarts are used up",
        int(Exit.NOT_FIT): "was not started, because its preflight failed",
        int(Exit.RENDEZVOUS_LOST): "lost the rendezvous",
        int(Exit.HANG): "hung",
        int(Exit.STALE_GENERATION): "belonged to a worker group that was replaced",
        int(Exit.GPU_FAULT): "could not use its GPU",
    }
    if exit_code in words:
        return words[exit_code]
    try:
        return f"killed by {signal.Signals(exit_code - Exit.SIGNAL_BASE).name}"
    except ValueError:
        return f"exited with code {exit_code}"


def summary(pods: Iterable[Object]) -> dict[str, Any] | None:
    """What the run came to, from the pod that knows most about it."""
    told = [dict(ending.parsed_message) for ending in _endings(pods) if ending.is_success and ending.parsed_message]
    return max(told, key=len, default=None)


def account(pods: Iterable[Object]) -> dict[str, Any] | None:
    """What the time of a run that failed went into, by the pod that saw most of it; None where none tells.

    A pod that came late may not know that steps were taken before it; one that took some, and kept no account, says so
    by telling nothing of its time. Then the steps alone are known.
    """
    told = [ending.parsed_message for ending in _endings(pods) if ending.is_error and "result" in ending.parsed_message]
    known = [document for document in told if isinstance(document.get("seconds"), int | float)]
    most = max(known, key=seconds_of, default={})
    if not most.get("steps") and len(known) < len(told):
        most = max(told, key=_steps_of)
        if _steps_of(most) <= 0:
            return None
    return {name: most[name] for name in _ACCOUNT if name in most} or None


def _steps_of(document: Mapping[str, Any]) -> int:
    steps = document.get("steps")
    return steps if isinstance(steps, int) else 0


def seconds_of(document: Mapping[str, Any]) -> float:
    """The time of the job that it knows of."""
    seconds = document.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def restarts(pods: Iterable[Object]) -> dict[str, int]:
    """Restarts by cause, as ended pods count them: each counts the whole run."""
    counts: dict[str, int] = {}
    for ending in _endings(pods):
        told = ending.parsed_message.get("restarts")
        for cause, count in told.items() if isinstance(told, dict) else ():
            if isinstance(count, int):
                counts[cause] = max(counts.get(cause, 0), count)
    return counts


def _endings(pods: Iterable[Object]) -> Iterator[_TerminatedContainer]:
    for pod in workers(pods):
        for status in pod.get("status", {}).get("containerStatuses") or ():
            for state in (status.get("lastState") or {}, status.get("state") or {}):
                ended = state.get("terminated")
                if ended:
                    yield _TerminatedContainer(
                        pod["metadata"]["name"], int(ended.get("exitCode", 0)), ended.get("message") or ""
                    )
