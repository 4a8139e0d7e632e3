"""Errors that the launcher and the store report in one sentence, with an exit code."""

from __future__ import annotations

from ddp_trainer.common.constants import Exit


class LaunchError(Exception):
    """Invalid flag, script or port."""

    def __init__(self, message: str, *, exit_code: int = Exit.USAGE) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
