"""What the launcher and the store report in one sentence, with the exit code that goes with it."""

from __future__ import annotations

from ddp_trainer.common.constants import Exit


class LaunchError(Exception):
    """A flag, a script or a port that cannot be meant."""

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
