"""Error that ends a preflight with one sentence instead of a table, and its exit code."""

from __future__ import annotations

from ddp_trainer.common.constants import Exit


class PreflightError(Exception):
    """A flag, an endpoint or a script is invalid."""

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
