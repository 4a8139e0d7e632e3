"""Atomic replacement of files: write a draft beside the target, then rename it onto the target.

Every module of the pod that replaces a file uses :func:`draft_of`. The name of a draft holds a random token, not the
process id: two containers that share a volume may have equal process ids, and would write into one draft. Standard
library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_TOKEN_BYTES: Final = 8
_ABANDONED_SECONDS: Final = 3600.0
"""Age in seconds after which a draft has no writer: a draft is renamed within seconds."""


@contextmanager
def draft_of(file: Path) -> Iterator[Path]:
    """Yield the name of a new file beside ``file`` that replaces ``file`` when the block ends without an error.

    Raises:
        OSError: If the draft could not be renamed. The target still has its old content, and the draft is removed.
    """
    # Drawn for each draft: a token of the process would be the same in its forks.
    draft = file.with_name(f".{file.name}.{os.urandom(_TOKEN_BYTES).hex()}")
    try:
        yield draft
        draft.replace(file)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def remove_stale_temp_files(file: Path) -> None:
    """Remove drafts that crashed writers left more than an hour before ``file`` was last replaced.

    Both times come from the file system, so the clocks of the machines that share it do not matter.
    """
    with suppress(OSError):
        abandoned_before = file.stat().st_mtime - _ABANDONED_SECONDS
        for entry in file.parent.iterdir():
            if entry.name.startswith(f".{file.name}.") and entry.stat().st_mtime < abandoned_before:
                entry.unlink()
