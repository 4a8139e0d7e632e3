"""Which release this is, and which image belongs to it."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """The release, as in ``0.1.0``."""
    return importlib.metadata.version("kubectl-ddp")


def default_image() -> str:
    """The trainer image of this release, as ``make image`` names it."""
    return f"ddp-trainer:{version()}"
