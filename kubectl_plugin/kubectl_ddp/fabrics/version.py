"""Versions of NCCL, and the one that an image's name tells."""

from __future__ import annotations

import re
from typing import TypeAlias

Version: TypeAlias = tuple[int, ...]


def version(text: str) -> Version:
    """``2.21`` as numbers, to compare."""
    return tuple(int(part) for part in text.split("."))


def nccl_of(image: str) -> Version | None:
    """The version that the name of an image says; most say none.

    >>> nccl_of("example.com/nccl-tests:13.0-nccl2.28.7-1"), nccl_of("example.com/nccl-tests:1.2")
    ((2, 28, 7), None)
    """
    match = re.search(r"nccl[-_]?v?(\d+(?:\.\d+){1,2})", image)
    return version(match[1]) if match else None
