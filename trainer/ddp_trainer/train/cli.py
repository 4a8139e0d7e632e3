"""Command ``python -m ddp_trainer train``.

:func:`main` parses the flags into a :class:`Config`, calls :func:`ddp_trainer.train.api.run`, and turns errors into
messages and exit codes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.trainer_options import renamed_flag
from ddp_trainer.net.arguments import ArgumentParser
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.process.stdio import print_safe
from ddp_trainer.train.api import run
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.options import Options, add_options
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.utils.errors import BadConfig, exit_without_teardown, named_error_file, report_error

_HELP_HINT: Final = "See python -m ddp_trainer train --help."


def main(argv: Sequence[str], recorder: Callable[[], RankRecorder] | None = None) -> int:
    """Train with these flags, and return the exit code.

    A rank that fails in a group of several ranks ends its process here. Its group cannot be torn down in order, and the
    launcher waits for the process to end.

    Args:
        argv: The flags.
        recorder: Makes the recorder of metrics; called once the rank is known.
    """
    control = Control.from_env(os.environ)
    try:
        config = parse(argv)
        outcome = run(config, recorder=recorder, env=Environment.from_env(os.environ), control=control)
        # Read again: a process that outlived its group may have another rank now.
        if Environment.from_env(os.environ).rank == 0 and not config.log_json:
            print_safe(outcome.summary.to_json())
        print_safe()  # what progress could not write either
    except Exception as err:  # noqa: BLE001 - top level: the task's own code may raise anything
        if control is not None and control.stands_by:
            return int(Exit.FAILURE)  # the launcher starts it again in its group, where the error is reported
        return _failed(err)
    return outcome.exit_code if outcome.error is None else _failed(outcome.error)


def _failed(err: Exception) -> int:
    env = Environment()
    with suppress(BadConfig):
        env = Environment.from_env(os.environ)
    # If the launcher's variables are invalid, the error file may still be named.
    error_file = named_error_file() or env.error_file
    if env.world_size > 1:
        exit_without_teardown(err, error_file)
    return report_error(err, error_file)


def parse(argv: Sequence[str]) -> Config:
    """Parse flags into a validated configuration.

    Raises:
        BadConfig: A flag is unknown, or its value is invalid.
    """
    parser = _parser()
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - no public list
        given = unknown[0].partition("=")[0]
        if renamed := renamed_flag(given):
            raise BadConfig(renamed)
        near = get_close_matches(given, flags, n=1)
        hint = f"Did you mean {near[0]}?" if near else _HELP_HINT
        raise BadConfig(f"There is no flag {unknown[0]!r}.", hint=hint)
    return Config(**vars(known))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        partial(BadConfig, hint=_HELP_HINT),
        prog="python -m ddp_trainer train",
        description="Train elastically: the result depends on seed, data, batch and step, not on who computes it.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for group in Options.__bases__:
        add_options(parser, group)
    return parser
