"""Completion of ``kubectl ddp``: kubectl runs ``kubectl_complete-ddp`` when the user presses the tab key.

The protocol is cobra's. The arguments are the words so far, the last one incomplete. The output has one line per
candidate, ``value<TAB>description``, and finally ``:N``, a directive for the shell. kubectl does not filter candidates,
so only those with the prefix are printed. Errors are not printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

import click

from kubectl_ddp.cli.group import root
from kubectl_ddp.cli.internal.candidates import Candidate, CommandArgs, command_names, flags, values
from kubectl_ddp.cli.internal.job_options import parameter_of
from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.job_key import Completion


class Directive(IntFlag):
    """Values of cobra's ShellCompDirective."""

    FILES = 0
    NO_FILES = 4
    FILTER_EXTENSION = 8


EXTENSIONS: Final = (Candidate("yaml"), Candidate("yml"), Candidate("json"))
OF_KEYS: Final = {parameter_of(key) for key, field in FILE_KEYS.items() if field.completion is Completion.FILES}
FILES: Final = frozenset({"kubeconfig", "script"} | OF_KEYS)
"""Parameters whose value is the path of any file."""


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """Candidates and directive for the shell."""

    candidates: Sequence[Candidate]
    directive: Directive = Directive.NO_FILES

    def __str__(self) -> str:
        lines = [f"{each.value}\t{each.description}".rstrip("\t") for each in self.candidates]
        return "\n".join([*lines, f":{self.directive:d}"])


def main() -> int:
    """Run the console script. Errors are suppressed, because a shell would print them into the line being typed."""
    try:
        print(complete(sys.argv[1:]))
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 - see above
        print(f":{Directive.NO_FILES:d}")
    return 0


def complete(words: Sequence[str]) -> CompletionResult:
    """Complete the last of ``words``, which follow ``kubectl ddp``."""
    *before, unfinished = words or [""]
    name = next((word for word in before if not word.startswith("-")), None)
    if name is None:
        return _beginning_with(unfinished, CompletionResult(command_names(unfinished)))
    group = root()
    context = click.Context(group, info_name="ddp")
    command = group.get_command(context, name)
    if command is None:
        return CompletionResult(())
    rest = before[before.index(name) + 1 :]
    return _of_command(command, context, rest, unfinished)


def _of_command(
    command: click.Command, context: click.Context, before: Sequence[str], unfinished: str
) -> CompletionResult:
    if "--" in before:
        return CompletionResult((), Directive.FILES)
    pending = _pending_option(command, before)
    words = CommandArgs(command, tuple(before))
    if pending is not None:
        return _beginning_with(unfinished, _of_parameter(pending, words))
    head, equals, value = unfinished.partition("=")
    if head.startswith("--") and equals:
        option = _option(command, head)
        found = _beginning_with(value, _of_parameter(option, words)) if option else CompletionResult(())
        return CompletionResult(
            [Candidate(f"{head}={each.value}", each.description) for each in found.candidates], found.directive
        )
    if unfinished.startswith("-"):
        return _beginning_with(unfinished, CompletionResult(flags(command, context)))
    argument = _argument(command, len(words.positional_args))
    return _beginning_with(unfinished, _of_parameter(argument, words)) if argument else CompletionResult(())


def _of_parameter(parameter: click.Parameter, words: CommandArgs) -> CompletionResult:
    if parameter.name == "job_file":
        return CompletionResult(EXTENSIONS, Directive.FILTER_EXTENSION)
    if parameter.name in FILES:
        return CompletionResult((), Directive.FILES)
    return CompletionResult(values(parameter, words))


def _beginning_with(unfinished: str, found: CompletionResult) -> CompletionResult:
    if found.directive is Directive.FILTER_EXTENSION:
        return found
    return CompletionResult([each for each in found.candidates if each.value.startswith(unfinished)], found.directive)


def _option(command: click.Command, word: str) -> click.Option | None:
    return next((each for each in command.params if isinstance(each, click.Option) and word in each.opts), None)


def _pending_option(command: click.Command, before: Sequence[str]) -> click.Option | None:
    """Return the option that the previous word starts, if it takes a value."""
    option = _option(command, before[-1]) if before else None
    return option if option is not None and not option.is_flag and not option.count else None


def _argument(command: click.Command, position: int) -> click.Argument | None:
    """Return the argument at a position."""
    for argument in (each for each in command.params if isinstance(each, click.Argument)):
        if argument.nargs < 0 or position < argument.nargs:
            return argument
        position -= argument.nargs
    return None
