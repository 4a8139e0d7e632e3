"""Which release this is, and which image belongs to it."""

from __future__ import annotations

from typing import Final

RELEASE: Final = "0.1.0"
"""As pyproject.toml has it, to which a test holds it; to read the distribution's own record takes 20 ms."""


def version() -> str:
    """The release, as in ``0.1.0``."""
    return RELEASE


def default_image() -> str:
    """The trainer image of this release, as ``make image`` names it."""
    return f"ddp-trainer:{version()}"
