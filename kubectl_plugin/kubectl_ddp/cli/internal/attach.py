"""Following a submitted job: prints its logs, waits for its end, and reports the result."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import Cancelled, InfrastructureFailed, Interrupted, JobFailed, NotFound, TimedOut
from kubectl_ddp.observe.log_stream import follow_logs, rank_filter
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.json_output import job_to_dict
from kubectl_ddp.util.invocation import location_flags, program
from kubectl_ddp.util.terminal import write_log_line


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
    try:
        if follows:
            with time_limit(timeout, name):
                _print_logs(backend, name, to_stderr=is_data)
        wait_for(backend, name, parse_wait_condition("complete"), timeout=timeout)
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
        raise
    if is_data:
        _print_end(backend, submission, options)
    else:
        options.print_message(f"Job {name} has succeeded.")  # operators word their details differently


def _print_end(backend: Backend, submission: dict[str, Any], options: Options) -> None:
    state = job_state(backend.job(submission["name"]), {}, where=backend.where)
    end = {"state": str(state.state), "summary": state.summary, "job": job_to_dict(state)}
    print_output(submission | end, str(options.output))


def _print_logs(backend: Backend, name: str, *, to_stderr: bool) -> None:
    for line in follow_logs(backend, name, rank_filter("all", None)):
        stream = sys.stderr if to_stderr else sys.stdout
        write_log_line(stream, str(line))
        stream.flush()


@contextlib.contextmanager
def time_limit(seconds: float | None, name: str) -> Iterator[None]:
    """Raise TimedOut in the block after ``seconds``. Uses SIGALRM, because reading lines has no timeout."""

    def raise_timeout(_number: int, _frame: FrameType | None) -> None:
        raise TimedOut(
            f"Job {name} did not end within {seconds:g} seconds; it continues.", hint="Give it a longer --timeout."
        )

    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
