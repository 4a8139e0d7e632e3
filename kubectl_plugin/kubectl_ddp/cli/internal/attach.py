"""Following a submitted job: shows its progress or prints its logs, waits for its end, and reports the result."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.cli.internal.progress import ProgressDisplay, print_end, show_progress
from kubectl_ddp.errors import Cancelled, InfrastructureFailed, Interrupted, JobFailed, NotFound
from kubectl_ddp.observe.log_stream import follow_logs, rank_filter
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.job_tables import job_to_dict
from kubectl_ddp.util.concurrency import Future
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import write_log_line


def attach_to_job(
    backend: Backend, submission: dict[str, Any], options: Options, *, follows: bool, timeout: float | None
) -> None:
    """Wait until the job has ended. Ctrl-C leaves the job running.

    Raises:
        JobFailed: If the code of the job failed.
        InfrastructureFailed: If the infrastructure failed.
        Cancelled: If the job was deleted or suspended.
        TimedOut: If the timeout has passed.
    """
    name = submission["name"]
    is_data = options.output in {"json", "yaml"}
    logs = sys.stderr if is_data else sys.stdout
    display = show_progress(backend, options, logs=logs if follows else None)
    try:
        with display:
            end = _wait_for_end(backend, name, display, logs if follows else None, timeout)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped watching; job {name} continues.",
            hint=f"Return with '{program()} logs {name} -f{location_flags()}'.",
        ) from None
    except NotFound:
        raise Cancelled(f"Job '{name}' was deleted before it was complete.") from None
    except (JobFailed, InfrastructureFailed):
        if is_data:
            _print_end(backend, submission, options)
        elif display.last is not None:
            print_end(display.last, options)
        raise
    if is_data:
        _print_end(backend, submission, options)
    else:
        print_end(end, options)


def _wait_for_end(
    backend: Backend, name: str, display: ProgressDisplay, logs: TextIO | None, timeout: float | None
) -> JobState:
    """Return the state in which the job succeeded. Meanwhile, print its logs to ``logs``."""

    def wait() -> JobState:
        return wait_for(backend, name, parse_wait_condition("complete"), timeout=timeout, seen=display.seen)

    if logs is None:
        return wait()
    waiting = Future(wait)  # not as a context manager: an error of the logs must not wait for the job
    for line in follow_logs(backend, name, rank_filter("all", None), timeout=timeout):
        with display.paused():
            write_log_line(logs, str(line))
            logs.flush()
    return waiting.result()


def _print_end(backend: Backend, submission: dict[str, Any], options: Options) -> None:
    state = job_state(backend.job(submission["name"]), {}, where=backend.where)
    end = {"state": str(state.state), "summary": state.summary, "job": job_to_dict(state)}
    print_output(submission | end, str(options.output))
