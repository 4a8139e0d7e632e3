"""Which release this is, and which image belongs to it."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """The release, as in ``0.1.0``."""
    import importlib.metadata  # noqa: PLC0415 - reads the disk and parses mail headers; help does without

    return importlib.metadata.version("kubectl-ddp")


def default_image() -> str:
    """The trainer image of this release, as ``make image`` names it."""
    return f"ddp-trainer:{version()}"
