"""Resident parent of the launcher: the main process of a worker pod, which starts the launcher and starts it again in
place when it crashes.

:func:`run` is the entry point. A crash is a death by a signal that was not forwarded, or an internal error. Before the
next launcher starts, all processes of the last one are dead but its fork server, which starts the next launcher if it
can (:mod:`~ddp_trainer.launch.host.parent_link`). Any exit code of the launcher ends the parent, and so the
pod, with the same code: controllers see what they see without a parent. The store counts the crash as a failure, so
``--max-restarts`` limits the restarts of a launcher that has joined a group. A launcher that dies before is started a
few times only. The parent has no event loop and one thread, and imports little.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.launch.host.parent_link import LauncherRecordFile, ParentLink, ParentSocket
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.exit_codes import of_wait_status
from ddp_trainer.process.process_tree import children_of, set_child_subreaper

MOST_EARLY_CRASHES: Final = 3
"""Crashes in a row of launchers that had not joined a group. After the last one, the parent exits with its code."""

KILLED: Final = Exit.SIGNAL_BASE + signal.SIGKILL

_STOPS: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals that the parent forwards, since ``--signals-to-handle`` may name them. A launcher that dies after one of them
is not started again.
"""
_PR_SET_PDEATHSIG: Final = 1


def run(launch: Callable[[ParentLink | None], int]) -> int:
    """Run the launcher in a child process, again after each crash, and return its exit code.

    The function returns in the parent, and in each child: there, with the result of ``launch``. A second launcher in
    the same pod, for example for a measurement, gets no parent, since the record of crashes belongs to the first one.
    """
    if link := ParentLink.from_env(os.environ):
        os.environ.pop(Env.RESTART_IN_PLACE, None)
        return _abort_on_error(partial(launch, link))
    record = LauncherRecordFile(os.environ)
    if not record.lock():
        os.environ.pop(Env.RESTART_IN_PLACE, None)
        return launch(None)
    # The container itself may have died and restarted, for example of a lack of memory.
    record.record_crash(KILLED, time.time())
    set_child_subreaper()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS | {signal.SIGCHLD})
    early_crashes = launcher = 0
    parent = os.getpid()
    while True:
        if not launcher:
            connection = ParentSocket()
            launcher = os.fork()
            if not launcher:
                _detach_launcher(parent, mask)
                return _abort_on_error(partial(launch, connection.detach_link()))
        code, was_stopped = _wait_for(launcher)
        is_crash = code < 0 and not was_stopped
        fork_server = connection.fork_server() if is_crash else 0
        _kill_descendants(spared=fork_server)
        if not is_crash:
            return of_wait_status(code)
        exit_code = of_wait_status(code)
        early_crashes = 0 if record.record_crash(exit_code, time.time()) else early_crashes + 1
        died = f"The launcher died of {signal.Signals(-code).name}"
        if early_crashes >= MOST_EARLY_CRASHES:
            log_line(f"{died}, {early_crashes} times in a row before it had joined a group; exit code {exit_code}.")
            _kill_descendants()
            return exit_code
        log_line(f"{died}. It is started again in this pod.")
        launcher = connection.start_launcher() if fork_server and not early_crashes else 0
        if not launcher:
            _kill_descendants()
            connection.close()


def _detach_launcher(parent: int, mask: Iterable[int]) -> None:
    """Detach this process from the parent's terminal, since the parent forwards signals, but not from its life."""
    os.setsid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call to prctl
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ.pop(Env.RESTART_IN_PLACE, None)  # not for the launcher of a script
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _abort_on_error(launch: Callable[[], int]) -> int:
    """Return the result of the launcher. After an internal error, print it and die of SIGABRT, which is a crash."""
    try:
        return launch()
    except Exception:  # noqa: BLE001 - printed, and reported to the parent
        import resource  # noqa: PLC0415 - only here
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.abort()


def _wait_for(launcher: int) -> tuple[int, bool]:
    """Wait for the end of the launcher, forward signals and reap orphans.

    Returns:
        The return code, negative for a signal, and whether a signal to stop was forwarded.
    """
    was_stopped = False
    while True:
        which = signal.sigwait(_STOPS | {signal.SIGCHLD})
        if which in _STOPS:
            was_stopped = True
            os.kill(launcher, which)  # reaped below only, so the id is its own
            continue
        while (reaped := _reap(os.WNOHANG)) is not None:
            if reaped[0] == launcher:
                return reaped[1], was_stopped


def _reap(flags: int) -> tuple[int, int] | None:
    """Return process id and return code of a child that has ended; None if there is none."""
    try:
        pid, status = os.waitpid(-1, flags)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _kill_descendants(spared: int = 0) -> None:
    """Kill all processes that the launcher has left, and wait until they are dead. Each becomes a child of this process
    when its own parent ends.

    Args:
        spared: Process id of a child that stays; 0 for none.
    """
    while left := [pid for pid in children_of(os.getpid()) if pid != spared]:
        while left:
            pid = left.pop()
            left += children_of(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(0)
