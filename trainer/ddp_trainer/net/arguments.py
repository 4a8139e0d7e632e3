"""Command line arguments that the launcher and the preflight read alike."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from ddp_trainer.common.constants import Env

HELP_HINT: Final = "; --help lists the flags"


class ArgumentParser(argparse.ArgumentParser):
    """Parser that raises an exception with one sentence, where argparse would print its usage and exit."""

    def __init__(self, refusal: Callable[[str], Exception], *, hint: str = "", **settings: Any) -> None:
        """Make a parser.

        Args:
            refusal: Makes the exception from the sentence.
            hint: End of the sentence, before its full stop.
            settings: Arguments of argparse's parser.
        """
        super().__init__(**settings)
        self._refusal = refusal
        self._hint = hint

    def error(self, message: str) -> NoReturn:
        """Raise the exception with argparse's message."""
        raise self._refusal(f"{message[:1].upper()}{message[1:]}{self._hint}.")


def node_range(text: str, refusal: Callable[[str], Exception]) -> tuple[int, int]:
    """Return the least and the greatest number of nodes of ``--nnodes``. Raises the refusal for anything else.

    >>> node_range("2:8", ValueError), node_range("4", ValueError)
    ((2, 8), (4, 4))
    """
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise refusal(f"--nnodes {text!r} is neither a number from 1 nor MIN:MAX with MIN <= MAX.")
    return least, most


def node_index(environ: Mapping[str, str], node_rank: int | None = None) -> int | None:
    """Return the index of this pod: of its indexed Job, else the trailing number of its name, else ``node_rank``.

    >>> node_index({"DDP_POD_NAME": "digits-worker-12"})
    12
    """
    completion_index = environ.get("JOB_COMPLETION_INDEX", "")
    if completion_index.isdecimal():
        return int(completion_index)
    trailing = re.search(r"-(\d{1,9})$", environ.get(Env.POD_NAME, ""))
    return int(trailing[1]) if trailing else node_rank
