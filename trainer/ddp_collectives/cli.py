"""Command line of ``ddp-launch collectives``, the same on every node.

The launcher starts :mod:`worker` on every rank.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Final

from ddp_collectives.errors import BadRequest
from ddp_collectives.request import parse, parser, split
from ddp_trainer.__main__ import main as run_command
from ddp_trainer.launch.flags import remaining_args

WORKER: Final = "ddp_collectives.worker"

Launch = Callable[[Sequence[str]], int]
"""Runs the launcher with a command line, and returns its exit code."""


def main(argv: Sequence[str], launch: Launch = lambda words: run_command(["launch", *words])) -> int:
    """Check the flags and start the ranks. Returns an exit code of :mod:`errors`, or that of the launcher."""
    try:
        ours, torchruns = split(argv)
        parse(ours)
        _reject_unknown_args(remaining_args(torchruns))
    except BadRequest as error:
        print(f"ddp-launch collectives: {error}", file=sys.stderr)
        return error.exit_code
    # A restart would hide the failure that a rank found. A fork server would stay unused.
    return launch([*torchruns, "--max-restarts=0", "--no-zygote", "--module", WORKER, *ours])


def _reject_unknown_args(words: Sequence[str]) -> None:
    """Raise BadRequest for the first unknown word."""
    if not words:
        return
    word = words[0]
    if not word.startswith("-"):
        raise BadRequest(f"{word!r} is not a flag, and collectives run no script of yours; leave it out.")
    known = [name for action in parser()._actions for name in action.option_strings]  # noqa: SLF001 - no public way
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    hint = f"did you mean {near[0]}?" if near else "ddp-launch collectives --help lists the flags."
    raise BadRequest(f"Unknown flag {word}; {hint}")
