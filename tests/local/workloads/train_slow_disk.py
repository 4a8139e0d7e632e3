"""The trainer, and a disk so slow that what the first group saves is there when the second one could have begun."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddp_trainer.train.checkpoint import sharded_writer
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.checkpoint.write_lease import FILE
from ddp_trainer.train.cli import main

LATE_SECONDS: Final = 3.0
"""Duration of a save, unless the next writer claims the directory meanwhile, which ends the save."""

_FIRST: Final = 1
_whole = sharded_writer.write_pieces


def late(place: Path, rank: int, draft: Manifest, archive: Archive) -> Manifest:
    """Write pieces."""
    until = time.monotonic() + LATE_SECONDS
    while draft.generation == _FIRST and time.monotonic() < until and not _is_claimed_again(place.parent):
        time.sleep(0.02)
    return _whole(place, rank, draft, archive)


def _is_claimed_again(directory: Path) -> bool:
    with suppress(OSError):
        return bool(json.loads((directory / FILE).read_bytes())["generation"] > _FIRST)
    return False


if __name__ == "__main__":
    sharded_writer.write_pieces = late
    sys.exit(main(sys.argv[1:]))
