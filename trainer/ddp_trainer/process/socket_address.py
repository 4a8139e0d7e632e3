"""Addresses of Unix sockets, which are limited to 107 bytes, for paths of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield an address of a socket at this path, through an open descriptor of its folder.

    Raises:
        OSError: The folder cannot be opened.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
