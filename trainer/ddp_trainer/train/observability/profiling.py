"""Trace of a window of global steps on one rank, by torch's profiler.

The trace file opens in https://ui.perfetto.dev and in chrome://tracing. Outside of the window, nothing is measured. The
profiler is imported only when the window begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile

    from ddp_trainer.train.config.config import Config
    from ddp_trainer.train.config.option_values import ProfileWindow
    from ddp_trainer.train.config.worker_env import Environment


class StepProfiler:
    """Profiler of the steps in a window; inactive outside of the window."""

    def __init__(self, window: ProfileWindow, file: Path) -> None:
        """``file`` receives the trace."""
        self._steps = range(window.start, window.start + window.count)
        self._file = file
        self._profile: profile | None = None

    def step(self, step: int) -> None:
        """Start or stop the profiler at the beginning of a global step, counted from 0."""
        if self._profile is None:
            # A run that resumes within the window profiles the rest of it.
            if step in self._steps:
                self._begin()
        elif step >= self._steps.stop:
            self.close()

    def _begin(self) -> None:
        from torch.profiler import profile  # noqa: PLC0415 - slow to import, and rarely used

        self._profile = profile()
        self._profile.start()

    def close(self) -> None:
        """Stop the profiler if it runs, and write the trace."""
        if self._profile is None:
            return
        self._profile.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._file))
        self._profile = None


def open_profile(config: Config, env: Environment) -> StepProfiler | None:
    """Return the profiler of the steps in ``--profile``; None without the flag and on other ranks."""
    window = config.profile
    if window is None or config.profile_rank != env.rank:
        return None
    directory = config.profile_dir or env.run_dir or Path()
    return StepProfiler(window, directory / f"profile-rank{env.rank}-step{window.start}.json")
