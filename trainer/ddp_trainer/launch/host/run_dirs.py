"""Folders of a launcher: logs and error files, and the metrics files and heartbeat pages of its workers.

:func:`prepare_run_dirs` is the entry point. Metrics files and heartbeat pages belong to one launcher at a time, because
two launchers in one folder would report a job that does not exist. A launcher therefore locks the folder. The lock ends
with the process. If the folder is locked or not writable, the launcher uses its own folder and prints a sentence.
Training and metrics continue.
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
from ddp_trainer.launch.protocol.console import LaunchError

PREFIX: Final = "ddp_launch_"
LOCK: Final = "launcher.lock"
"""Lock file in the folder of metrics files. It contains the process id of the launcher that holds it."""
ROOM_BYTES: Final = 16384
"""Bytes for each process of a pod: a metrics file, a heartbeat page, and the old file while one is replaced."""


class DirectoryLocked(OSError):
    """The folder is locked by another launcher."""


@contextmanager
def prepare_run_dirs(
    arguments: argparse.Namespace, environ: Mapping[str, str], processes: int, report: Callable[[str], None]
) -> Iterator[tuple[Path, Path]]:
    """Yield the folder for logs and error files, and the folder for metrics files.

    Without a configured folder, both are in a temporary one. It is kept only if it has logs.

    Args:
        arguments: Arguments of the launcher.
        environ: Environment of the launcher.
        processes: Number of workers for whose metrics files the folder needs space.
        report: Receives a sentence if another folder than the configured one is used.

    Raises:
        LaunchError: If a folder for logs cannot be used.
    """
    run_dir = environ.get(Env.RUN_DIR, "")
    requested = environ.get(Env.METRICS_DIR)
    with ExitStack() as stack:
        try:
            log_dir = _of_run(arguments) if arguments.log_dir else None
            base = Path(run_dir) if run_dir else log_dir
            if base is None or not (run_dir or requested):
                base = _scratch(arguments, stack, base)
            log_dir = log_dir or base / File.ATTEMPTS
            log_dir.mkdir(parents=True, exist_ok=True)
            warn = report if requested or run_dir else lambda _: None
            room = ROOM_BYTES * (1 + processes)
            board_dir = _prepare_metrics_dir(Path(requested or base / File.METRICS), room, warn, stack)
        except OSError as error:
            where = f"folder {error.filename}" if error.filename else "folder"
            raise LaunchError(f"The log {where} cannot be used: {error.strerror}.") from error
        yield log_dir, board_dir


def _scratch(arguments: argparse.Namespace, stack: ExitStack, log_dir: Path | None) -> Path:
    """Return a temporary folder, so that --log-dir has only what torchrun writes there.

    If none can be created, return ``log_dir``, or raise OSError without one.
    """
    keeps_logs = log_dir is None and (arguments.tee != "0" or arguments.redirects != "0")
    try:
        return _temporary(stack, is_kept=keeps_logs)
    except OSError:
        if log_dir is None:
            raise
        return log_dir


def _of_run(arguments: argparse.Namespace) -> Path:
    """Create a folder below ``--log-dir`` with torchrun's naming. Raises OSError."""
    Path(arguments.log_dir).mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{arguments.rdzv_id}_", dir=arguments.log_dir))


def _temporary(stack: ExitStack, *, is_kept: bool = False) -> Path:
    """Create a private temporary folder. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if not is_kept:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _prepare_metrics_dir(wanted: Path, room_bytes: int, report: Callable[[str], None], stack: ExitStack) -> Path:
    """Return ``wanted``, or a temporary folder if it cannot be used. The reason goes to ``report``."""
    try:
        _take(wanted, room_bytes, stack)
    except OSError as trouble:
        why, way_out = _why_not(wanted, trouble)
        try:
            other = _temporary(stack)
        except OSError:  # no folder is writable: writers report it, and training continues
            return wanted
        report(f"{why}, so this launcher has its own in {other}, and training continues: {way_out}.")
        return other
    return wanted


def _why_not(wanted: Path, trouble: OSError) -> tuple[str, str]:
    if isinstance(trouble, DirectoryLocked):
        return f"In {wanted} are the metrics of {trouble}", f"give each its own {Env.METRICS_DIR} or {Env.RUN_DIR}"
    way_out = f"name a folder in {Env.METRICS_DIR} that this user may write to and that has room"
    return f"The metrics folder {wanted} cannot be used ({trouble.strerror})", way_out


def _take(folder: Path, room_bytes: int, stack: ExitStack) -> None:
    """Create and lock the folder until ``stack`` ends, and check that it has room.

    Raises:
        DirectoryLocked: If another launcher has locked it.
        OSError: If it belongs to another user or cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid not in {os.geteuid(), 0}:  # its owner can replace our files
        raise OSError(errno.EPERM, "it belongs to another user", str(folder))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        raise DirectoryLocked(f"another launcher, process {pid}" if pid else "another launcher") from None
    except OSError:  # a file system without locks: another launcher cannot be detected
        pass
    os.posix_fallocate(lock, 0, room_bytes)
    os.ftruncate(lock, 0)
    with suppress(OSError):  # the process id is only for a message
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
