"""Where a launcher's files go: logs and error files, and the boards and pulses of its workers.

Boards and pulses are of one launcher at a time: two that wrote to the same ones would tell of a job that there is not.
So a launcher locks their folder for its life; the lock ends with the process, however that does. Where the folder is
another's, or cannot be written, they go to one of its own, which costs a sentence and neither training nor metrics.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, File
from ddp_trainer.launch.protocol.errors import LaunchError

PREFIX: Final = "ddp_launch_"
LOCK: Final = "launcher.lock"
"""In the folder of boards; holds the process id of the launcher that has it."""
ROOM_BYTES: Final = 16384
"""What a process of a pod takes of it: a board, a pulse, and while one of them is made anew the one before."""


class Occupied(OSError):
    """Another launcher has the folder."""


@contextmanager
def folders(
    arguments: argparse.Namespace, environ: Mapping[str, str], processes: int, say: Callable[[str], None]
) -> Iterator[tuple[Path, Path]]:
    """Where log and error files go, and boards of so many workers; a temporary folder when nobody says, which is left
    only with logs.

    Raises LaunchError where there is no room for logs.
    """
    run_dir = environ.get(Env.RUN_DIR, "")
    asked = environ.get(Env.METRICS_DIR)
    with ExitStack() as stack:
        try:
            log_dir = _of_run(arguments) if arguments.log_dir else None
            base = Path(run_dir) if run_dir else log_dir
            if base is None or not (run_dir or asked):
                base = _scratch(arguments, stack, base)
            log_dir = log_dir or base / File.ATTEMPTS
            log_dir.mkdir(parents=True, exist_ok=True)
            tell = say if asked or run_dir else _nobody
            yield log_dir, _of_boards(Path(asked or base / File.METRICS), ROOM_BYTES * (1 + processes), tell, stack)
        except OSError as error:
            where = f"folder {error.filename}" if error.filename else "folder"
            raise LaunchError(f"The log {where} cannot be used: {error.strerror}.") from error


def _scratch(arguments: argparse.Namespace, stack: ExitStack, log_dir: Path | None) -> Path:
    """Return a temporary folder, so that --log-dir has nothing but what torchrun writes there. Raises OSError.

    Where there can be none, ``log_dir`` is used.
    """
    keeps_logs = log_dir is None and (arguments.tee != "0" or arguments.redirects != "0")
    try:
        return _temporary(stack, stays=keeps_logs)
    except OSError:
        if log_dir is None:
            raise
        return log_dir


def _of_run(arguments: argparse.Namespace) -> Path:
    """Make a new folder below ``--log-dir``, named as torchrun names it. Raises OSError."""
    Path(arguments.log_dir).mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{arguments.rdzv_id}_", dir=arguments.log_dir))


def _nobody(_: str) -> None:
    """Nobody has asked for metrics, and where the pulses are is our own affair."""


def _temporary(stack: ExitStack, *, stays: bool = False) -> Path:
    """A new folder of ours alone. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if not stays:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _of_boards(wanted: Path, room_bytes: int, say: Callable[[str], None], stack: ExitStack) -> Path:
    """The folder ``wanted`` for boards, or one beside it that can be used; the sentence goes to ``say``."""
    try:
        _take(wanted, room_bytes, stack)
    except OSError as trouble:
        why, way_out = _why_not(wanted, trouble)
        try:
            other = _temporary(stack)
        except OSError:  # nothing can be written anywhere: who tries says so, and training goes on
            return wanted
        say(f"{why}, so this launcher has its own in {other}, and training goes on: {way_out}.")
        return other
    return wanted


def _why_not(wanted: Path, trouble: OSError) -> tuple[str, str]:
    if isinstance(trouble, Occupied):
        return f"In {wanted} are the metrics of {trouble}", f"give each a {Env.METRICS_DIR} or {Env.RUN_DIR} of its own"
    way_out = f"name a folder in {Env.METRICS_DIR} that this user may write to and that has room"
    return f"The metrics folder {wanted} cannot be used ({trouble.strerror})", way_out


def _take(folder: Path, room_bytes: int, stack: ExitStack) -> None:
    """Make sure that the folder is there, ours until ``stack`` ends, and has room.

    Raises Occupied where another launcher has it, OSError where it is another user's or cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid not in {os.geteuid(), 0}:  # whoever owns it can put files in the place of ours
        raise OSError(errno.EPERM, "it belongs to another user", str(folder))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        raise Occupied(f"another launcher, process {pid}" if pid else "another launcher") from None
    except OSError:  # a file system without locks: nothing tells whether somebody else is here
        pass
    os.posix_fallocate(lock, 0, room_bytes)
    os.ftruncate(lock, 0)
    with suppress(OSError):  # the number is for a sentence, the lock is what counts
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
