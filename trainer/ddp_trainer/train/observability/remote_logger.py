"""Curves in Weights & Biases and MLflow, sent by a process beside rank 0.

:class:`RemoteLogger` writes values into a pipe and never waits for the service.
:mod:`ddp_trainer.train.observability.logger_process` reads the pipe and calls the library. A slow or failing service
therefore neither blocks nor ends training.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from select import select
from typing import Final

from ddp_trainer.train.observability.logger_process import FLUSH_SECONDS, Service
from ddp_trainer.train.utils.errors import BadConfig

MAX_PENDING_BYTES: Final = 16 << 20
"""Values that wait for a slow service, in bytes; with more, the logger is dropped."""

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
        self._pending = bytearray()
        self._answer = b""
        self._has_failed = self._is_open = False

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
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # the launcher kills the process group of a worker, and values are on their way
            )
        except OSError as err:
            self._fail(f"its process could not be started: {err.strerror}")
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101 - both are pipes
            os.set_blocking(pipe.fileno(), False)

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Pass the values of a step on without waiting."""
        if self._process is None:
            return
        self._pending += json.dumps({"step": step, "epoch": epoch, **values}).encode() + b"\n"
        self._send()
        self._read_answers()
        if len(self._pending) > MAX_PENDING_BYTES:
            self._fail("it has been slower than training for too long")

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:
        """Send the last values and end the process.

        Args:
            is_over: The run is over; otherwise another process may continue it.
            waits: Wait at most :data:`FLUSH_SECONDS` seconds, instead of :data:`LAST_WORDS_SECONDS`.
        """
        process = self._process
        if process is None or process.stdin is None:
            return
        if is_over:
            self._pending += b'{"end": true}\n'
        limit = FLUSH_SECONDS if waits else LAST_WORDS_SECONDS
        has_ended = self._wait_for_end(process, time.monotonic() + limit, is_over=is_over)
        self._read_answers()
        if not has_ended and waits:
            self._fail(f"it did not take its last values within {limit:g} s")
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def _wait_for_end(self, process: subprocess.Popen[bytes], deadline: float, *, is_over: bool) -> bool:
        """Send what is pending, and return whether the process has ended in time.

        Without an end, a process whose stdin is closed before it has opened its run exits at once.
        """
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - as above
        while self._process is process and (self._pending or not (is_over or self._is_open)):
            if process.poll() is not None or (left := deadline - time.monotonic()) <= 0:
                break
            select((process.stdout,), (process.stdin,) if self._pending else (), (), left)
            self._send()
            self._read_answers()
        if not is_over:
            process.stdin.close()
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _send(self) -> None:
        assert self._process is not None  # noqa: S101 - callers check
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            while self._pending:
                del self._pending[: os.write(self._process.stdin.fileno(), self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self._pending.clear()  # the process has ended, and its last answer says why

    def _read_answers(self) -> None:
        """Pass on what the process has reported: where the run is, or why it failed."""
        if self._process is None or self._process.stdout is None:
            return
        try:
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._answer = (self._answer + chunk).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "note" in answer:
                self._is_open = True
                self._note(f"{self._service}: {answer['note']}")
            else:
                self._fail(answer["error"])
        if not chunk and self._process is not None and self._process.poll() not in {None, 0}:
            self._fail(f"its process ended with exit code {self._process.returncode}")

    def _fail(self, why: str) -> None:
        """Report the failure once, and drop the process; training continues."""
        if not self._has_failed:
            self._warn(f"--{self._service} failed, and the run continues without it: {why}.")
        self._has_failed = True
        process, self._process = self._process, None
        self._pending.clear()
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
