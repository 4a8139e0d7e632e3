"""Versions of NCCL, and their detection in image names."""

from __future__ import annotations

import re
from typing import TypeAlias

Version: TypeAlias = tuple[int, ...]


def version(text: str) -> Version:
    """Parse a version such as ``2.21`` into comparable numbers."""
    return tuple(int(part) for part in text.split("."))


def nccl_of(image: str) -> Version | None:
    """Return the NCCL version contained in an image name, or None.

    >>> nccl_of("example.com/nccl-tests:13.0-nccl2.28.7-1"), nccl_of("example.com/nccl-tests:1.2")
    ((2, 28, 7), None)
    """
    match = re.search(r"nccl[-_]?v?(\d+(?:\.\d+){1,2})", image)
    return version(match[1]) if match else None
