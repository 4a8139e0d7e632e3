"""Command ``python -m ddp_trainer train``.

:func:`main` parses the flags into a :class:`Config`, calls :func:`ddp_trainer.train.api.run`, and turns errors into
messages and exit codes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from ddp_trainer.common.constants import CheckpointScope, Env, Exit
from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.process.stdio import say_or_not
from ddp_trainer.train.api import run
from ddp_trainer.train.config.config import Config, DeviceName, ScheduleName, flag
from ddp_trainer.train.config.output_options import Keeping
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.utils.error_file import last_words, leave_group, named_error_file
from ddp_trainer.train.utils.errors import BadConfig


def main(argv: Sequence[str], recorder: Callable[[], RankRecorder] | None = None) -> int:
    """Train with these flags, and return the exit code.

    A rank that fails in a group of several ranks ends its process here. Its group cannot be torn down in order, and the
    launcher waits for the process to end.

    Args:
        argv: The flags.
        recorder: Makes the recorder of metrics; called once the rank is known.
    """
    control = Control.from_environ(os.environ)
    try:
        config = parse(argv)
        outcome = run(config, recorder=recorder, env=Environment.from_environ(os.environ), control=control)
        # Read again: a process that outlived its group may have another rank now.
        if Environment.from_environ(os.environ).rank == 0 and not config.log_json:
            say_or_not(outcome.summary.to_json())
        say_or_not()  # what progress could not write either
    except Exception as err:  # noqa: BLE001 - top level: the task's own code may raise anything
        if control is not None and control.stands_by:
            return int(Exit.FAILURE)  # the launcher starts it again in its group, where the error is reported
        return _failed(err)
    return outcome.exit_code if outcome.error is None else _failed(outcome.error)


def _failed(err: Exception) -> int:
    env = Environment()
    with suppress(BadConfig):
        env = Environment.from_environ(os.environ)
    # If the launcher's variables are invalid, the error file may still be named.
    error_file = named_error_file() or env.error_file
    if env.world_size > 1:
        leave_group(err, error_file)
    return last_words(err, error_file)


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises BadConfig instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise BadConfig with argparse's message."""
        raise BadConfig(f"{message[0].upper()}{message[1:]}.", hint="See python -m ddp_trainer train --help.")


def parse(argv: Sequence[str]) -> Config:
    """Parse flags into a validated configuration.

    Raises:
        BadConfig: A flag is unknown, or its value is invalid.
    """
    parser = _parser()
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - no public list
        near = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        hint = f"Did you mean {near[0]}?" if near else "See python -m ddp_trainer train --help."
        raise BadConfig(f"There is no flag {unknown[0]!r}.", hint=hint)
    return Config(**vars(known))


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        if text not in list(kind):
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}")
        return kind(text)

    return parse


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m ddp_trainer train",
        description="Train elastically: the result depends on seed, data, batch and step, not on who computes it.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_run(parser)
    _add_optimization(parser)
    _add_options(parser)
    _add_checkpoints(parser)
    _add_output(parser)
    return parser


def _add_run(parser: _Parser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--task", metavar="NAME", help="digits, text, image-folder, or module:factory of your own (default: digits)"
    )
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the samples (default: 30)")
    group.add_argument("--max-steps", type=int, metavar="N", help="end after this many global steps")
    group.add_argument("--global-batch", type=int, metavar="N", help="samples per step over all ranks (default: 64)")
    group.add_argument("--shards", type=int, metavar="N", help="logical shards of a batch: the most ranks there can be")
    group.add_argument("--seed", type=int, metavar="N", help="decides weights, order and random draws (default: 0)")
    group.add_argument("--evaluate-every", type=int, metavar="N", help="epochs between evaluations (default: 1)")
    group.add_argument(
        "--device", type=_one_of(DeviceName), choices=list(DeviceName), help="where to compute (default: auto)"
    )
    group.add_argument(
        "--timeout-seconds", type=float, metavar="S", help="a collective that takes longer lost a peer (default: 120)"
    )


def _add_optimization(parser: _Parser) -> None:
    group = parser.add_argument_group("optimization")
    group.add_argument("--optimizer", type=_one_of(OptimizerName), choices=list(OptimizerName), help="(default: adamw)")
    group.add_argument("--learning-rate", type=float, metavar="X", help="peak learning rate (default: 0.003)")
    group.add_argument("--weight-decay", type=float, metavar="X", help="(default: 0.01)")
    group.add_argument("--momentum", type=float, metavar="X", help="of SGD (default: 0.9)")
    group.add_argument("--schedule", type=_one_of(ScheduleName), choices=list(ScheduleName), help="(default: cosine)")
    group.add_argument("--warmup-steps", type=int, metavar="N", help="steps of linear rise (default: 50)")
    group.add_argument("--clip-norm", type=float, metavar="X", help="largest norm of the gradient (default: none)")


def _add_options(parser: _Parser) -> None:
    """Add the flags defined in :mod:`ddp_trainer.train.config.options` and
    :mod:`ddp_trainer.train.config.output_options`.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for each in fields(Keeping):
        meta = each.metadata
        group = groups.setdefault(meta["group"], parser.add_argument_group(meta["group"]))
        parse = meta["parse"]
        if parse is None:
            action = argparse.BooleanOptionalAction if each.default else "store_true"
            group.add_argument(flag(each.name), action=action, help=meta["help"])
        else:
            is_word = isinstance(parse, type) and issubclass(parse, StrEnum)
            choices = list(parse) if is_word else None
            note = "" if each.default is None else f" (default: {each.default})"
            group.add_argument(
                flag(each.name),
                type=_one_of(parse) if is_word else parse,
                choices=choices,
                metavar=meta["metavar"],
                help=meta["help"] + note,
            )


def _add_checkpoints(parser: _Parser) -> None:
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help=f"(default: ${Env.CHECKPOINT_DIR})")
    group.add_argument(
        "--checkpoint-scope",
        type=_one_of(CheckpointScope),
        choices=list(CheckpointScope),
        help=f"all ranks see one directory (job), or each pod its own (default: ${Env.CHECKPOINT_SCOPE}, else job)",
    )
    group.add_argument("--checkpoint-steps", type=int, metavar="N", help="save every so many steps")
    group.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", help="save every so many seconds; inf for never (default: 30)"
    )
    group.add_argument("--keep", type=int, metavar="N", help="checkpoints that are kept (default: 3)")


def _add_output(parser: _Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--log-seconds", type=float, metavar="S", help="seconds between progress lines (default: 5)")
    group.add_argument("--log-steps", type=int, metavar="N", help="steps between progress lines instead")
    group.add_argument("--log-json", action="store_true", help="progress and summary as JSON lines on stdout")
    group.add_argument(
        "--summary", type=Path, metavar="FILE", help=f"where the summary goes (default: ${Env.RUN_DIR}/summary.json)"
    )
