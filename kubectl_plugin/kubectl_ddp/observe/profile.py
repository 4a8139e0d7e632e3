"""Download of a profiler trace of a few steps: runs ``ddp_trainer profile`` beside the rank and stores its stdout."""

from __future__ import annotations

import gzip
import os
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Profile
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.errors import DdpError, NotFound, TimedOut

_RUN: Final = """\
python=$1
shift
if [ -n "$RANK_PID" ]; then
  own=$(tr '\\0' '\\n' <"/proc/$RANK_PID/cmdline" 2>/dev/null | head -n 1)
  case "$own" in *python*) python=$own ;; esac
fi
exec "$python" -P -m ddp_trainer profile "$@"
"""
"""Shell command that runs the profiler with the rank's interpreter, which can import ``ddp_trainer``.

``$1`` is the interpreter to use if the process of the rank is unknown.
"""
_SPARE_SECONDS: Final = 30.0
"""Time allowed for the connection and the transfer, in seconds."""


def entry(
    local_rank: int,
    variables: Mapping[str, str],
    *,
    steps: int,
    seconds: float,
    python: str = "python3",
    command: Sequence[str] = (),
) -> Entry:
    """Return the command to run beside the rank.

    Args:
        local_rank: Local rank of the worker.
        variables: Environment variables of the command.
        steps: Steps to record.
        seconds: Time limit.
        python: Interpreter of the pod that can import ``ddp_trainer``.
        command: Words that start the profiler, in a pod where no interpreter can import it without them.
    """
    flags = ("--local-rank", str(local_rank), "--steps", str(steps), "--seconds", f"{seconds:g}")
    return Entry(words=(*(command or ("sh", "-c", _RUN, "profile", python)), *flags), variables=variables)


def fetch_trace(handover: ExecCommand, file: Path, seconds: float) -> int:
    """Write the trace to ``file`` and return its size in bytes. An incomplete file is removed.

    Raises:
        TimedOut: If the rank completed no step in time.
        DdpError: If there is no trace, or the file cannot be written.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            _run(handover, out.fileno(), seconds)
        _check(draft)
        draft.replace(file)
    except OSError as error:
        raise DdpError(f"'{file}' cannot be written: {error.strerror}.", hint="Name another --file.") from error
    finally:
        draft.unlink(missing_ok=True)
    return file.stat().st_size


def _run(handover: ExecCommand, out: int, seconds: float) -> None:
    try:
        process = subprocess.Popen(
            handover.words,
            env=handover.environ,
            cwd=handover.directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise NotFound(f"Program '{handover.words[0]}' was not found.") from None
    with process:
        try:
            stderr = process.communicate(timeout=seconds + _SPARE_SECONDS)[1]
        except BaseException as error:
            process.terminate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimedOut(f"The pod has not answered within {error.timeout:g} s.") from None
            raise
    if process.returncode:
        raise _reason(process.returncode, stderr)


def _reason(code: int, stderr: str) -> DdpError:
    """Return the error that the profiler reported, or the reason why it did not run."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("command terminated")]
    messages = [line.removeprefix("profile: ") for line in lines if line.startswith("profile: ")]
    sentence = messages[-1] if messages else f"The pod made no trace: {lines[-1] if lines else f'exit code {code}'}."
    if code == Profile.LATE:
        return TimedOut(sentence, hint="Give it a longer --timeout; a rank that hangs ends no step.")
    return DdpError(sentence, hint="Try again when they are done." if code == Profile.BUSY else "")


def _check(file: Path) -> None:
    """Verify the checksum of the trace. Raises DdpError if it is incomplete."""
    try:
        with gzip.open(file) as trace:
            while trace.read(1 << 20):
                pass
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DdpError("The trace was cut off on its way here.", hint="Try again, with fewer --steps.") from None
