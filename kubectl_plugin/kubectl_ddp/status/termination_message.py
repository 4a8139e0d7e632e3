"""Results of ended worker pods: the first error of a failed run, or the summary of a successful one.

The launcher writes one JSON object into the termination message of its pod; other programs write any text. These
messages disappear with the pods. Therefore annotations of the job keep the first error and the summary
(:mod:`kubectl_ddp.observe.job_results`).
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ddp_trainer.common.constants import Annotation, Exit, FailureReason, Label, RestartCause, Role
from ddp_trainer.common.redacted_objects import redact_object
from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.kube.objects import Object, epoch, main_status

_LAUNCHERS: Final = frozenset({Exit.DO_NOT_RESTART, Exit.NOT_FIT})
"""Exit codes below 128 that the launcher itself sets."""

KEPT_CHARACTERS: Final = 4_000
"""Maximum length of a message or a stack in an annotation. All annotations of an object may have 256 KiB together."""

USER_REASONS: Final = frozenset(
    {
        FailureReason.PYTHON_EXCEPTION,
        FailureReason.IMPORT_ERROR,
        FailureReason.GPU_OOM,
        FailureReason.EARLY_EXIT,
        FailureReason.SIGSEGV,
        FailureReason.SIGABRT,
    }
)
"""Failures of the user's code, which another machine would not prevent."""
_FAULTS: Final = frozenset(int(Exit.SIGNAL_BASE + number) for number in (signal.SIGILL, signal.SIGFPE))
"""Codes of workers that died of a fault of their own and have no :class:`FailureReason`."""


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
"""Keys that the report of a failed run shares with the summary of a successful one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstError:
    """Error that occurred first, on any rank."""

    pod: str
    message: str
    """One sentence, or the message of the exception."""
    rank: int | None = None
    exit_code: int | None = None
    """Exit code of the worker process; 128 + n for signal n."""
    pod_exit_code: int | None = None
    reason: str = ""
    """A :class:`~ddp_trainer.common.constants.FailureReason`; empty if unknown."""
    stack: str = ""
    timestamp: float | None = None
    generation: int | None = None
    """Generation of the worker group that the error ended; None if unknown."""
    place: str = ""
    """Position of the rank in the layout of the job, in words; empty if the job has no layout."""
    host: str = ""
    """Kubernetes node of the pod; empty if the launcher did not report it."""

    @property
    def location(self) -> str:
        """Rank and pod; the pod alone if the rank is unknown."""
        if self.rank is None:
            return self.pod
        return f"rank {self.rank}{f' ({self.place})' if self.place else ''} on {self.pod}"

    @property
    def subject(self) -> str:
        """The location, capitalized for the start of a sentence."""
        return f"Pod {self.pod}" if self.rank is None else f"R{self.location[1:]}"

    @property
    def first_line(self) -> str:
        """First line of the message, as a sentence."""
        return f"{next(iter(self.message.splitlines()), '').rstrip('.') or 'no reason given'}."

    @property
    def is_users(self) -> bool:
        """True if the user's code failed, false if the infrastructure did."""
        if self.reason in USER_REASONS or (self.exit_code in _FAULTS and not self._has_known_reason):
            return True
        code = self.pod_exit_code if self.pod_exit_code is not None else self.exit_code
        return (
            code is not None and 0 < code < Exit.SIGNAL_BASE and code not in _LAUNCHERS and not self._has_known_reason
        )

    @property
    def _has_known_reason(self) -> bool:
        """True if the reason is known and was not inferred from the exit code."""
        return self.reason not in {"", FailureReason.OTHER}


@dataclass(frozen=True, slots=True)
class _TerminatedContainer:
    pod: str
    exit_code: int
    message: str

    @property
    def parsed_message(self) -> Mapping[str, Any]:
        """JSON object that the launcher wrote; empty if the message has another format."""
        try:
            document = json.loads(self.message)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def is_error(self) -> bool:
        """True if the container failed. Exit by SIGTERM without a reported error is not a failure."""
        return self.exit_code != 0 and (self.exit_code != Exit.TERMINATED or "message" in self.parsed_message)

    @property
    def is_success(self) -> bool:
        """True if the run succeeded. A pod may be stopped while it leaves a completed run, so its exit code alone is
        not enough.
        """
        return self.exit_code == 0 or self.parsed_message.get("result") == "succeeded"


def workers(pods: Iterable[Object]) -> list[Object]:
    """Return the worker pods."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(Label.ROLE) == Role.WORKER]


_ROOT_CAUSE: Final = re.compile(
    r"^Root Cause \(first observed failure\):\n\[\d+\]:\n\s+time +: (?P<time>\S+)\n.*?^\s+rank +: (?P<rank>\d+) .*?"
    r"^\s+exitcode +: (?P<code>-?\d+) .*?^\s+traceback +: (?P<traceback>[^\n]*)",
    re.MULTILINE | re.DOTALL,
)
"""Summary of torchrun, ``ChildFailedError.format_msg``. Its times are those of the pod, which is in UTC."""
_NO_TRACEBACK: Final = ("To enable traceback", "Signal ")

STORE_NAME: Final = re.compile(r"-store(-[a-z0-9]+)*$")
"""Pattern of the names of a rendezvous store's Job and pods."""


def stores(pods: Iterable[Object]) -> list[Object]:
    """Return the pods of the rendezvous store."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(Label.ROLE) == Role.STORE]


def is_running(pod: Object) -> bool:
    """Return whether the job's container of the pod is running."""
    return "running" in (main_status(pod).get("state") or {})


def crash_message(pod: Object) -> str:
    """Return the last error of the job's container if it waits for its restart; empty otherwise."""
    status = main_status(pod)
    before = (status.get("lastState") or {}).get("terminated") or {}
    if "waiting" not in (status.get("state") or {}) or not before.get("exitCode"):
        return ""
    name = str(pod["metadata"]["name"])
    return _inferred_error(_TerminatedContainer(name, int(before["exitCode"]), before.get("message") or "")).message


def first_error(pods: Iterable[Object]) -> FirstError | None:
    """Return the earliest error that an ended worker pod reports."""
    failed = [ending for ending in _endings(pods) if ending.is_error]
    reported = [_reported_error(ending) for ending in failed if "message" in ending.parsed_message]
    by_rank = [error for error in reported if error.rank is not None]
    # An error with a rank was observed directly. Errors without one report how the pod learned of the failure.
    candidates = by_rank or reported or [_inferred_error(ending) for ending in failed]
    return min(candidates, key=lambda error: error.timestamp or float("inf"), default=None)


def error_of(pod: str, exit_code: int, message: str) -> FirstError:
    """Return the error of a pod's termination message. If the message is truncated, infer the error from the exit
    code.
    """
    ending = _TerminatedContainer(pod, exit_code, message)
    if "message" in ending.parsed_message:
        return _reported_error(ending)
    return _inferred_error(_TerminatedContainer(pod, exit_code, "" if message.startswith("{") else message))


def failed_ranks(first: FirstError | None, pods: Iterable[Object]) -> tuple[int, ...]:
    """Return the ranks in the error reports of worker pods and in the first error; empty if nothing failed.

    Each pod reports only the first failure among its own ranks.
    """
    if first is None:
        return ()
    reported = (
        _reported_error(ending) for ending in _endings(pods) if ending.is_error and "message" in ending.parsed_message
    )
    return tuple(sorted({error.rank for error in (first, *reported) if error.rank is not None}))


def load_first_error(job: Object) -> FirstError | None:
    """Return the first error from the job's annotation; None if it is missing or has another format."""
    text = (job["metadata"].get("annotations") or {}).get(Annotation.FIRST_ERROR, "")
    ending = _TerminatedContainer("", 0, text)
    return _reported_error(ending) if "message" in ending.parsed_message else None


def to_keep(error: FirstError) -> str:
    """Serialize an error for the annotation, as JSON. Long messages and stacks are cut in the middle, to keep objects
    small.
    """
    document = {name: value for name, value in asdict(error).items() if value not in {None, ""}}
    document |= {"message": _truncate(error.message), "stack": _truncate(error.stack)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _truncate(text: str) -> str:
    half = (KEPT_CHARACTERS - 1) // 2
    return text if len(text) <= KEPT_CHARACTERS else f"{text[:half]}…{text[-half:]}"


def resolve_first_error(job: Object, pods: Iterable[Object]) -> FirstError | None:
    """Return the first error from the pods or from the annotation, whichever is more reliable.

    An error with a rank precedes an error without one. Of two errors with a rank, that of the later worker group is
    returned, because the run recovered from the earlier one.
    """
    reported, stored = first_error(pods), load_first_error(job)
    if reported is None or stored is None:
        return reported or stored
    if reported.rank is None and stored.rank is not None:
        return stored
    return stored if (stored.generation or 0) > (reported.generation or 0) else reported


def _clean(text: str) -> str:
    """Remove secrets and control characters. Errors are printed, annotated and uploaded, and may quote a key."""
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


def _torchrun_error(ending: _TerminatedContainer) -> FirstError | None:
    """Return the first failure in the summary with which torchrun ends; None if the message has none."""
    if (found := _ROOT_CAUSE.search(_clean(ending.message))) is None:
        return None
    exit_code = int(found["code"])
    code = Exit.SIGNAL_BASE - exit_code if exit_code < 0 else exit_code
    traceback = found["traceback"].strip()
    return FirstError(
        pod=ending.pod,
        message=describe_exit_code(code) if not traceback or traceback.startswith(_NO_TRACEBACK) else traceback,
        rank=int(found["rank"]),
        exit_code=code,
        pod_exit_code=ending.exit_code,
        stack=_clean(ending.message),
        timestamp=epoch(found["time"].replace("_", "T") + "Z"),
    )


def _inferred_error(ending: _TerminatedContainer) -> FirstError:
    if (of_torchrun := _torchrun_error(ending)) is not None:
        return of_torchrun
    lines = [line for line in _clean(ending.message).splitlines() if line.strip()]
    # If a signal ended the program, its last line does not describe the failure.
    has_message = bool(lines) and ending.exit_code < Exit.SIGNAL_BASE
    return FirstError(
        pod=ending.pod,
        message=lines[-1].strip() if has_message else describe_exit_code(ending.exit_code),
        exit_code=ending.exit_code,
        pod_exit_code=ending.exit_code,
        stack="\n".join(lines) if len(lines) > 1 else "",
    )


def describe_exit_code(exit_code: int) -> str:
    """Describe an exit code in words.

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
    """Return the most detailed summary that a pod of a successful run reports."""
    summaries = [dict(one.parsed_message) for one in _endings(pods) if one.is_success and one.parsed_message]
    return max(summaries, key=len, default=None)


def account(pods: Iterable[Object]) -> dict[str, Any] | None:
    """Return the time account of a failed run, from the pod that observed most of it; None if no pod has one.

    A pod that joined late may not count the steps before it. If a pod that took steps reports no time account, only the
    number of steps is returned.
    """
    reports = [one.parsed_message for one in _endings(pods) if one.is_error and "result" in one.parsed_message]
    known = [document for document in reports if isinstance(document.get("seconds"), int | float)]
    most = max(known, key=seconds_of, default={})
    if not most.get("steps") and len(known) < len(reports):
        most = max(reports, key=_steps_of)
        if _steps_of(most) <= 0:
            return None
    return {name: most[name] for name in _ACCOUNT if name in most} or None


def startup(pod: Object) -> dict[str, float]:
    """Return the start that a pod's launcher reported at its end: ``began`` (Unix time) and seconds by phase."""
    startups = [ending.parsed_message.get("startup") for ending in _endings([pod])]
    last = next((phases for phases in reversed(startups) if isinstance(phases, Mapping)), {})
    return {str(name): float(value) for name, value in last.items() if isinstance(value, int | float)}


def _steps_of(document: Mapping[str, Any]) -> int:
    steps = document.get("steps")
    return steps if isinstance(steps, int) else 0


def seconds_of(document: Mapping[str, Any]) -> float:
    """Return the job's elapsed time in a report, in seconds."""
    seconds = document.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def restarts(pods: Iterable[Object]) -> dict[str, int]:
    """Return restarts by cause. Every pod counts the whole run, so the maximum over all ended pods is taken."""
    counts: dict[str, int] = {}
    for ending in _endings(pods):
        reported = ending.parsed_message.get("restarts")
        for cause, count in reported.items() if isinstance(reported, dict) else ():
            if isinstance(count, int):
                counts[cause] = max(counts.get(cause, 0), count)
    return counts


def _endings(pods: Iterable[Object]) -> Iterator[_TerminatedContainer]:
    for pod in workers(pods):
        main = main_status(pod)
        has_started = {"running", "terminated"} & {*(main.get("state") or {}), *(main.get("lastState") or {})}
        # An init container that fails, such as pip's, is why the job's container has not started.
        inits = () if has_started else (pod.get("status") or {}).get("initContainerStatuses") or ()
        for state in (status.get(when) or {} for status in (*inits, main) for when in ("lastState", "state")):
            if ended := state.get("terminated"):
                yield _TerminatedContainer(
                    pod["metadata"]["name"], int(ended.get("exitCode", 0)), ended.get("message") or ""
                )


Summary = dict[str, Any]


def outcome(job: Object, workers: Iterable[Object], *, has_succeeded: bool) -> Summary | None:
    """Return the summary of a successful run, or the time account of a failed one; None if unknown.

    If both pods and annotation have one, the more complete one is returned: some pods may be gone.
    """
    pods = [*workers]
    reported = summary(pods) if has_succeeded else account(pods)
    stored = _stored_summary(job, _result(has_succeeded=has_succeeded))
    known = [result for result in (reported, stored) if result is not None]
    most = max(known, key=len if has_succeeded else seconds_of, default=None)
    return _redact_summary(most) if most is not None else None


def restarts_of(summary: Mapping[str, Any]) -> dict[str, int]:
    """Return restarts by cause. Malformed values are skipped, because any program may write the summary."""
    counts = summary.get("restarts")
    items = counts.items() if isinstance(counts, Mapping) else ()
    return {str(cause): count for cause, count in items if isinstance(count, int) and count > 0}


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
    fields = {"step": steps, "steps_planned": summary.get("steps_planned"), "goodput": summary.get("goodput")}
    return {name: value for name, value in fields.items() if isinstance(value, int | float)}


def text_to_keep(summary: Mapping[str, Any], *, has_succeeded: bool) -> str:
    """Serialize a summary for the annotation: compact JSON without secrets."""
    document = _redact_summary({**summary, "result": _result(has_succeeded=has_succeeded)})
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


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
