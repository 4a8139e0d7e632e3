"""Command line of ``ddp-launch collectives``, the same on every node.

The launcher starts :mod:`worker` on every rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from ddp_collectives.flags import PROGRAM, BadRequest, parse
from ddp_trainer.__main__ import main as run_command
from ddp_trainer.launch.flags import remaining_args

WORKER: Final = "ddp_collectives.worker"

Launch = Callable[[Sequence[str]], int]
"""Runs the launcher with a command line, and returns its exit code."""


def main(argv: Sequence[str], launch: Launch = lambda words: run_command(["launch", *words])) -> int:
    """Check the flags and start the ranks. Returns 2 for an invalid flag, else the exit code of the launcher."""
    try:
        request, launcher_flags = parse(argv)
    except BadRequest as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    if unknown := remaining_args(launcher_flags):
        hint = "is not a flag, and collectives run no script; --help lists the flags."
        print(f"{PROGRAM}: {unknown[0]!r} {hint}", file=sys.stderr)
        return BadRequest.exit_code
    # A restart would hide the failure that a rank found. A fork server would stay unused.
    fixed = ("--max-restarts=0", "--no-fork-server", "--module", WORKER)
    return launch([*launcher_flags, *fixed, json.dumps(asdict(request))])
