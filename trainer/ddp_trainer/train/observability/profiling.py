"""Trace of a window of global steps on one rank, by torch's profiler.

The trace file opens in https://ui.perfetto.dev and in chrome://tracing. Outside of the window, nothing is measured. The
profiler is imported only when the window begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch.profiler import profile

    from ddp_trainer.train.config.config import Config
    from ddp_trainer.train.config.worker_env import Environment


class Profile:
    """Profiler of the steps in the window of ``--profile``; inactive on other ranks and outside of the window."""

    def __init__(self, config: Config, env: Environment) -> None:
        window = config.profile if config.profile_rank == env.rank else None
        self._start = -1 if window is None else window.start
        self._stop = -1 if window is None else window.start + window.count
        directory = config.profile_dir or env.run_dir or Path()
        self.file = directory / f"profile-rank{env.rank}-step{self._start}.json"
        """Path of the trace file."""
        self._profile: profile | None = None

    def step(self, step: int) -> None:
        """Start or stop the profiler at the beginning of a global step, counted from 0."""
        if self._profile is None:
            # A run that resumes within the window profiles the rest of it.
            if self._start <= step < self._stop:
                self._begin()
        elif step >= self._stop:
            self._end()

    def _begin(self) -> None:
        from torch.profiler import profile  # noqa: PLC0415 - slow to import, and rarely used

        self._profile = profile()
        self._profile.start()

    def _end(self) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self.file))
        self._profile = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._end()
