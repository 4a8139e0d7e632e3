"""``python -m ddp_trainer profile``: request a trace of the next steps from a worker of this pod, and write it to
stdout.

``kubectl ddp profile`` runs it in the pod of the rank. The trace is gzipped JSON for https://ui.perfetto.dev and
chrome://tracing. An error is one sentence on stderr. Standard library only.

Exit codes: 0 the trace was written; 1 no trace; 2 usage; 75 another process profiles this rank; 124 no step ended in
time.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, Exit, Profile
from ddp_trainer.launch.in_worker.ondemand_profiler import READY, REFUSAL, REQUEST, TRACE
from ddp_trainer.process.heartbeat_page import STACKS_BEFORE
from ddp_trainer.process.process_tree import PROC, handles_signal, parent_of

LOCK: Final = ".profile.lock"
POLL_SECONDS: Final = 0.05


class NoTrace(Exception):
    """No trace could be made. The message is a sentence; ``code`` is the exit code."""

    def __init__(self, sentence: str, code: int = Exit.FAILURE) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True)
class Worker:
    """Worker process of this pod that can be profiled."""

    pid: int
    page: str

    def signal(self) -> int:
        """Return the signal at which the worker reads its request.

        Raises:
            NoTrace: The worker does not handle the signal.
        """
        try:
            number = int(Path(self.page + READY).read_text())
        except (OSError, ValueError):
            number = 0
        if not number or not handles_signal(self.pid, number):
            raise NoTrace(
                f"Process {self.pid} cannot be profiled: it has not imported torch yet, not in its main thread, or has "
                "the signal for itself."
            )
        return number


def worker_of(local_rank: int, environ: dict[str, str]) -> Worker:
    """Return the worker with a local rank.

    Args:
        local_rank: Local rank of the worker.
        environ: Environment of this pod.

    Raises:
        NoTrace: No such worker runs in this pod.
    """
    same = {name: environ.get(name, "") for name in (Env.RUN_ID, Env.POD_NAME)}
    found = []
    for process in PROC.iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit():
                variables = _variables(process / "environ")
                is_ours = all(variables.get(name, "") == value for name, value in same.items())
                parent = parent_of(int(process.name))
                if is_ours and parent is not None and (page := heartbeat_page(process, local_rank)):
                    found.append((int(process.name), parent, page))
    numbers = {pid for pid, _, _ in found}
    # Child processes of a worker, such as data loaders, inherit its descriptors.
    for pid, parent, page in sorted(found):
        if parent not in numbers:
            return Worker(pid, page)
    raise NoTrace(f"No worker with local rank {local_rank} runs in this pod under ddp-launch.")


def heartbeat_page(process: Path, local_rank: int) -> str:
    """Return the path of the heartbeat page of a worker with this local rank, which has a file beside it open.

    The environment in ``/proc`` does not have it: that of a forked worker is the fork server's.
    """
    suffix = f"/rank-{local_rank}.page{STACKS_BEFORE}"
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed just now
            path = str(descriptor.readlink())
            if path.endswith(suffix):
                return path.removesuffix(STACKS_BEFORE)
    return ""


def _variables(path: Path) -> dict[str, str]:
    pairs = (os.fsdecode(variable).partition("=") for variable in path.read_bytes().split(b"\0") if variable)
    return {name: value for name, _, value in pairs}


@contextlib.contextmanager
def profile_lock(worker: Worker) -> Iterator[None]:
    """Hold the lock that lets one process at a time profile a worker.

    Raises:
        NoTrace: Another process holds the lock.
    """
    with Path(worker.page + LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NoTrace("Another profile of this rank is running.", Profile.BUSY) from None
        yield


def trace(worker: Worker, steps: int, seconds: float, folder: Path) -> Path:
    """Return the file with the trace of the worker's next steps.

    Args:
        worker: Worker to profile.
        steps: Number of steps.
        seconds: Limit of the wait for the trace.
        folder: Empty folder for the trace.

    Raises:
        NoTrace: The worker refused, exited, took too long, or its trace is too large.
    """
    number, request = worker.signal(), Path(worker.page + REQUEST)
    request.write_text(json.dumps({"folder": str(folder), "steps": steps}))
    deadline = time.monotonic() + seconds
    try:
        os.kill(worker.pid, number)
        while time.monotonic() < deadline:
            if (folder / TRACE).exists():
                return _bounded(folder / TRACE, steps)
            if (folder / REFUSAL).exists():
                raise NoTrace(f"The rank made no trace: {(folder / REFUSAL).read_text()}.")
            os.kill(worker.pid, 0)
            time.sleep(POLL_SECONDS)
    except ProcessLookupError:
        raise NoTrace("The rank has ended meanwhile.") from None
    finally:
        request.unlink(missing_ok=True)
    raise NoTrace(
        f"Within {seconds:g} s the rank has not ended {steps + 1} steps of an optimizer of torch's.", Profile.LATE
    )


def _bounded(file: Path, steps: int) -> Path:
    size = file.stat().st_size
    if size > Profile.MOST_BYTES:
        raise NoTrace(f"The trace of {steps} steps has {size >> 20} MiB: record fewer.")
    return file


def main(argv: Sequence[str]) -> int:
    """Write one trace, and return the exit code that the module describes."""
    arguments = argument_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.TERMINATED))  # so that temporary files are removed
    try:
        worker = worker_of(arguments.local_rank, dict(os.environ))
        with profile_lock(worker), tempfile.TemporaryDirectory(prefix="ddp-profile-") as folder:
            file = trace(worker, arguments.steps, arguments.seconds, Path(folder))
            with file.open("rb") as source:
                shutil.copyfileobj(source, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except NoTrace as reason:
        print(f"profile: {reason}", file=sys.stderr)
        return reason.code
    except OSError as error:
        print(f"profile: {error}", file=sys.stderr)
        return Exit.FAILURE
    return Exit.SUCCESS


_STEPS: Final = range(1, Profile.MOST_STEPS + 1)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_trainer profile", description="Record a trace of a rank's next steps."
    )
    parser.add_argument("--local-rank", type=int, required=True, help="local rank of the worker")
    parser.add_argument(
        "--steps", type=int, default=Profile.STEPS.value, choices=_STEPS, metavar="N", help="number of steps"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="maximum time to wait for the trace")
    return parser
