"""Release number, and the trainer image of this release."""

from __future__ import annotations

from typing import Final

RELEASE: Final = "0.1.0"
"""Release number, the same as in pyproject.toml (checked by a test). Reading the package metadata would take 20 ms."""


def version() -> str:
    """Return the release number, as in ``0.1.0``."""
    return RELEASE


def default_image() -> str:
    """Return the name of this release's trainer image, as built by ``make image``."""
    return f"ddp-trainer:{version()}"
