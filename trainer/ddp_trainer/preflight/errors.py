"""What a preflight reports in one sentence instead of a table, with the exit code that goes with it."""

from __future__ import annotations

from ddp_trainer.common.constants import Exit


class PreflightError(Exception):
    """A flag, an endpoint or a script that cannot be meant."""

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
