"""Where the program of a job keeps its checkpoints, as far as its arguments name an object store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ddp_trainer.common.constants import STORE_CLIENTS

_FLAG: Final = "--checkpoint-dir"


def object_store_url(args: Sequence[str]) -> str | None:
    """Return the URL of an object store in the trainer's option ``--checkpoint-dir``; None without one.

    >>> object_store_url(["--epochs", "2", "--checkpoint-dir=s3://bucket/run"])
    's3://bucket/run'
    """
    values = [value for flag, value in pairwise(args) if flag == _FLAG]
    values += [each.removeprefix(f"{_FLAG}=") for each in args if each.startswith(f"{_FLAG}=")]
    urls = [value for value in values if value.partition("://")[0] in STORE_CLIENTS and "://" in value]
    return urls[-1] if urls else None
