"""Curves in Weights & Biases and MLflow, sent by a process beside rank 0.

:class:`RemoteLogger` puts values into a queue and never waits for the service. A thread writes them to the process
:mod:`ddp_trainer.train.observability.logger_process`, which calls the library. The library is in a process and not in
the thread, because it takes seconds to import, waits for the network at exit, and may hold the interpreter or end it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import Full, Queue
from typing import IO, Final

from ddp_trainer.train.observability.logger_process import FLUSH_SECONDS, Service
from ddp_trainer.train.utils.errors import BadConfig

MAX_PENDING_LINES: Final = 100_000
"""Steps and evaluations that wait for a slow service; with more, the logger is dropped."""

LAST_WORDS_SECONDS: Final = 1.0
"""Time that a failing rank 0, or one that gets another rank, waits for its last values, in seconds."""


class RemoteLogger:
    """Logger of one service. The library runs in a child process, so training does not wait for it."""

    def __init__(
        self,
        service: Service,
        target: str,
        options: Mapping[str, str],
        *,
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """Create the logger; :meth:`begin` starts its process.

        Args:
            service: The service.
            target: Project of W&B, or experiment of MLflow.
            options: Options of the run, shown as its configuration.
            warn: Receives a sentence when the logger fails, at most once.
            note: Receives a sentence on where the curves are.
        """
        self._service, self._target, self._options = service, target, options
        self._warn, self._note = warn, note
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Queue[bytes | None] = Queue(MAX_PENDING_LINES)
        self._receiver: threading.Thread | None = None
        self._is_open = threading.Event()
        self._lock = threading.Lock()
        self._has_failed = False

    def begin(self, step: int, run_id: str = "") -> None:  # noqa: ARG002 - the process drops repeated steps itself
        """Start the process that continues the run with this id; a running process stays.

        Raises:
            BadConfig: The package of the service is not installed.
        """
        if self._process is not None or self._has_failed:
            return
        spec = importlib.util.find_spec(self._service)
        if spec is None or spec.origin is None:  # W&B's own folder of runs, ./wandb, is found as a namespace
            raise BadConfig(
                f"--{self._service} needs the package {self._service}, which is not installed.",
                hint=f"Install kubectl-ddp[{self._service}].",
            )
        module = "ddp_trainer.train.observability.logger_process"
        arguments = [self._service, self._target, run_id, json.dumps(self._options)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # a thread inside of a buffer would abort the interpreter at its end
                start_new_session=True,  # the launcher kills the process group of a worker, and values are on their way
            )
        except OSError as err:
            self._fail(f"its process could not be started: {err.strerror}")
            return
        self._process = process
        threading.Thread(target=self._send, args=(process.stdin,), daemon=True).start()
        self._receiver = threading.Thread(target=self._receive, args=(process, process.stdout), daemon=True)
        self._receiver.start()

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Pass the values of a step on without waiting."""
        if self._process is not None:
            try:
                self._lines.put_nowait(json.dumps({"step": step, "epoch": epoch, **values}).encode() + b"\n")
            except Full:
                self._fail("it has been slower than training for too long")

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:
        """Send the last values and end the process.

        The process exits at once if its stdin is closed before it has opened its run.

        Args:
            is_over: The run is over; otherwise another process may continue it.
            waits: Wait at most :data:`FLUSH_SECONDS` seconds, instead of :data:`LAST_WORDS_SECONDS`.
        """
        if self._process is None or self._receiver is None:
            return
        limit = FLUSH_SECONDS if waits else LAST_WORDS_SECONDS
        deadline = time.monotonic() + limit
        if not is_over:
            self._is_open.wait(limit)
        with contextlib.suppress(Full):
            self._lines.put(b'{"end": true}\n' if is_over else None, timeout=max(0.0, deadline - time.monotonic()))
        self._receiver.join(max(0.0, deadline - time.monotonic()))
        if self._receiver.is_alive() and waits:
            self._fail(f"it did not take its last values within {limit:g} s")
        self._process = None
        self._stop_sender()

    def _send(self, stdin: IO[bytes]) -> None:
        with contextlib.suppress(OSError), stdin:  # if the process has ended, its last answer is the reason
            while (line := self._lines.get()) is not None:
                while line:
                    line = line[stdin.write(line) :]

    def _stop_sender(self) -> None:
        with contextlib.suppress(Full):
            self._lines.put_nowait(None)

    def _receive(self, process: subprocess.Popen[bytes], answers: IO[bytes]) -> None:
        """Pass on what the process reports until its end: where the run is, or why it failed."""
        with answers:
            for line in answers:
                answer = json.loads(line)
                if "error" in answer:
                    self._fail(answer["error"])
                else:
                    self._note(f"{self._service}: {answer['note']}")
                    self._is_open.set()
        if process.wait() and self._process is process:
            self._fail(f"its process ended with exit code {process.returncode}")
        self._is_open.set()

    def _fail(self, why: str) -> None:
        """Report the failure once, and drop the process; training continues."""
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            self._warn(f"--{self._service} failed, and the run continues without it: {why}.")
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._stop_sender()
