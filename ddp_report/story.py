"""Story of a job: one to three sentences about its failures, its recovery, its resizes and its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddp_report.draw import duration, elapsed_text
from ddp_report.time_series import JobTimeSeries, Kind, WorkerFailure
from ddp_trainer.common.constants import FailureReason
from kubectl_ddp.status.job_state import FirstError, JobState, State
from kubectl_ddp.status.termination_message import resize_count, restart_count
from kubectl_ddp.util.text_table import pluralize

MOST_SENTENCES: Final = 3

_ENDS: Final = {
    FailureReason.SIGKILL: "was killed",
    FailureReason.SIGTERM: "was terminated",
    FailureReason.HOST_OOM: "ran out of memory",
    FailureReason.GPU_OOM: "ran out of GPU memory",
    FailureReason.HANG: "hung",
    FailureReason.EARLY_EXIT: "exited before the others",
    FailureReason.LAUNCHER_CRASH: "died with its launcher",
}
"""End of a worker as a verb, by reason; ``failed`` for all others."""


def summarize_run(state: JobState, numbers: JobTimeSeries | None, error: FirstError | None) -> tuple[str, ...]:
    """Return one to three sentences, or none if nothing is known of the job's training."""
    return tuple(_summary(state, numbers, error))[:MOST_SENTENCES]


def worker_end(reason: str) -> str:
    """Return what a worker did that ended for this reason, such as ``was killed``."""
    return _ENDS.get(FailureReason(reason), "failed") if reason in {*FailureReason} else "failed"


def _summary(state: JobState, numbers: JobTimeSeries | None, error: FirstError | None) -> Iterator[str]:
    failures = numbers.failures if numbers is not None else ()
    start = numbers.timeline.start if numbers is not None else state.created
    if numbers is not None and failures:
        yield from _summarize_failures(failures, numbers.timeline.start)
    elif numbers is not None:
        yield from _summarize_resizes(numbers)
    if state.state is State.FAILED:
        yield _summarize_end(error, start)
    elif numbers is not None and not failures and not numbers.changes and numbers.worlds:
        yield from _summarize_no_failure(state, numbers.worlds[-1])


def _summarize_no_failure(state: JobState, size: int) -> Iterator[str]:
    """Yield that nothing happened to the present pods. Their numbers do not show what happened to earlier ones."""
    ranks, have = ("The rank", "has") if size == 1 else (f"All {size} ranks", "have")
    restarts, resizes = restart_count(state.restarts), resize_count(state.restarts)
    if state.was_suspended:
        if restarts:
            yield f"The worker group restarted {pluralize(restarts, 'time')} before the job was resumed."
        yield f"{ranks} {have} trained without a restart since the job was resumed."
    elif restarts:
        yield f"The worker group restarted {pluralize(restarts, 'time')}."
    elif resizes:
        yield f"The worker group was resized {pluralize(resizes, 'time')}, and did not restart."
    elif state.state is State.SUCCEEDED:
        yield f"{ranks} trained from start to end without a restart."
    else:
        yield f"{ranks} {have} trained without a restart so far."


def _summarize_failures(failures: Sequence[WorkerFailure], start: float) -> Iterator[str]:
    last = failures[-1]
    who = f"rank {last.rank}" if last.rank is not None else f"a worker of {last.pod}"
    did = f"{who} {worker_end(last.reason)} at {elapsed_text(last.time - start)}."
    if len(failures) == 1:
        yield did[0].upper() + did[1:]
        yield from _summarize_recovery(last)
        return
    yield f"Workers failed {len(failures)} times. Most recently {did}"
    yield from _summarize_recovery(last)
    stops = [failure.stopped_seconds for failure in failures if failure.stopped_seconds is not None]
    if len(stops) == len(failures):
        yield f"All failures together stopped training for {duration(sum(stops))}."


def _summarize_recovery(failure: WorkerFailure) -> Iterator[str]:
    """Yield how the group recovered. Times of readings are upper bounds."""
    before, after = failure.ranks_before, failure.ranks_after
    if before is None or after is None:
        return
    stop = f" after {duration(failure.stopped_seconds)}" if failure.stopped_seconds is not None else ""
    restored = f" within {duration(failure.restored_seconds)}" if failure.restored_seconds is not None else ""
    everybody = "the rank" if before == 1 else f"all {before} ranks"
    if after < before:
        yield (
            f"The other {pluralize(after, 'rank')} trained on{stop}."
            if not restored
            else (f"The other {pluralize(after, 'rank')} trained on{stop}, and {everybody} trained again{restored}.")
        )
    elif stop or restored:
        yield f"{everybody[0].upper()}{everybody[1:]} trained again{stop or restored}."


def _summarize_resizes(numbers: JobTimeSeries) -> Iterator[str]:
    sizes = numbers.worlds
    restarts = [one for one in numbers.changes if one.kind is Kind.RESTART]
    if restarts:  # of a failure that no pod has counted: the workers had left the group before one of them ended
        last = restarts[-1]
        cause = last.text.removeprefix("restart: ")
        yield f"The worker group restarted at {elapsed_text(last.time - numbers.timeline.start)} (cause: {cause})."
    if len(sizes) == 2:
        moments = [one.time for one in numbers.changes if one.kind is Kind.SCALE]
        when = f" at {elapsed_text(moments[-1] - numbers.timeline.start)}" if moments else ""
        verb = "grew" if sizes[1] > sizes[0] else "shrank"
        yield f"The worker group {verb} from {sizes[0]} to {pluralize(sizes[1], 'rank')}{when}."
    elif len(sizes) > 2:
        shown = ", ".join(map(str, sizes[1:-1][-6:]))
        yield (
            f"The worker group was resized {len(sizes) - 1} times: "
            f"from {sizes[0]} to {shown} and {pluralize(sizes[-1], 'rank')}."
        )


def _summarize_end(error: FirstError | None, start: float | None) -> str:
    if error is None:
        return "The job failed."
    when = ""
    if error.timestamp is not None and start is not None and error.timestamp >= start:
        when = f" at {elapsed_text(error.timestamp - start)}"
    return f"{error.subject} ended the job{when}."
