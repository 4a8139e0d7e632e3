"""Time limit of a worker whose program is over: its threads must not keep the run from ending.

:class:`ExitLimit` is made by :mod:`ddp_trainer.launch.workers.worker_group` when the bootstrap of a worker reports the
exit code of its program. It prints what held the process, kills it, and replaces the return code.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.workers.children import kill

EXIT_SECONDS: Final = 8.0
"""Seconds from the end of a program to SIGKILL for its process."""
MOST_THREADS: Final = 32
"""Maximum number of threads in the report."""


class ExitLimit:
    """Exit time limit of one worker. Belongs to the launcher's event loop."""

    def __init__(self, pid: int, rank: int | None, exit_code: int) -> None:
        """Start the timer.

        Args:
            pid: Process id of the worker.
            rank: Rank of the worker; None before its first generation.
            exit_code: Exit code of its program.
        """
        self._pid = pid
        self._who = "A worker without a rank" if rank is None else f"Rank {rank}"
        self._exit_code = exit_code
        self._has_killed = False
        self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self._kill)

    def final_exit_code(self, returncode: int) -> int:
        """Stop the timer, and return the program's exit code if a signal ended its process, else ``returncode``."""
        self._timer.cancel()
        if returncode >= 0:
            return returncode
        if not self._has_killed and returncode != -signal.SIGTERM:  # which the launcher sends after a peer has failed
            log_line(
                f"{self._who} died of signal {-returncode} while it exited. Its program had ended with code "
                f"{self._exit_code}, which counts."
            )
        return self._exit_code

    def _kill(self) -> None:
        log_line(
            f"{self._who} ended with code {self._exit_code}, but its process did not exit within {EXIT_SECONDS:g} s. "
            f"The launcher kills it. Its threads:\n{threads_of(self._pid)}"
        )
        self._has_killed = True
        kill(self._pid, signal.SIGKILL)


def threads_of(pid: int) -> str:
    """Return one line per thread of a process: id, name, state, wait channel and system call."""
    tasks = sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda task: int(task.name))
    lines = [_line_of(task) for task in tasks[:MOST_THREADS]]
    return "\n".join([*lines, f"  and {len(tasks) - MOST_THREADS} more"] if len(tasks) > MOST_THREADS else lines)


def _line_of(task: Path) -> str:
    name, state = _read(task / "comm"), _read(task / "stat").rpartition(") ")[2][:1]
    system_call = _read(task / "syscall").partition(" ")[0]
    return f"  {task.name} {name}: state {state}, wchan {_read(task / 'wchan')}, system call {system_call}"


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip() or "?"
    except OSError:  # the thread has ended, or the kernel does not show it
        return "?"
