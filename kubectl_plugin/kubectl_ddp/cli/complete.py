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
from kubectl_ddp.cli.internal.candidates import Candidate, command_names, flags, is_given, values
from kubectl_ddp.cli.internal.job_options import parameter_of
from kubectl_ddp.errors import DdpError
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
        lines = [f"{candidate.value}\t{candidate.description}".rstrip("\t") for candidate in self.candidates]
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
    group = click.Context(root(), info_name="ddp")
    command = root().get_command(group, name)
    if command is None:
        return CompletionResult(())
    return _of_command(command, group, before[before.index(name) + 1 :], unfinished)


def _of_command(command: click.Command, group: click.Context, rest: Sequence[str], unfinished: str) -> CompletionResult:
    if "--" in rest:
        return CompletionResult((), Directive.FILES)
    if (pending := _option(command, rest[-1:])) is not None and not (pending.is_flag or pending.count):
        return _beginning_with(unfinished, _of_parameter(pending, _parsed(command, rest[:-1], group)))
    context = _parsed(command, rest, group)
    head, equals, value = unfinished.partition("=")
    if head.startswith("--") and equals:
        option = _option(command, [head])
        found = _beginning_with(value, _of_parameter(option, context)) if option else CompletionResult(())
        return CompletionResult(
            [Candidate(f"{head}={candidate.value}", candidate.description) for candidate in found.candidates],
            found.directive,
        )
    if unfinished.startswith("-"):
        return _beginning_with(unfinished, CompletionResult(flags(command, context)))
    arguments = (parameter for parameter in command.params if isinstance(parameter, click.Argument))
    argument = next(
        (parameter for parameter in arguments if parameter.nargs < 0 or not is_given(parameter, context)), None
    )
    return _beginning_with(unfinished, _of_parameter(argument, context)) if argument else CompletionResult(())


def _parsed(command: click.Command, words: Sequence[str], group: click.Context) -> click.Context:
    """Return the context of a command line; one without values if the line has an error."""
    try:
        return command.make_context(command.name, [*words], parent=group, resilient_parsing=True)
    except (DdpError, click.ClickException):
        return click.Context(command, parent=group)


def _of_parameter(parameter: click.Parameter, context: click.Context) -> CompletionResult:
    if parameter.name == "job_file":
        return CompletionResult(EXTENSIONS, Directive.FILTER_EXTENSION)
    if parameter.name in FILES:
        return CompletionResult((), Directive.FILES)
    return CompletionResult(values(parameter, context))


def _beginning_with(unfinished: str, found: CompletionResult) -> CompletionResult:
    if found.directive is Directive.FILTER_EXTENSION:
        return found
    return CompletionResult(
        [candidate for candidate in found.candidates if candidate.value.startswith(unfinished)], found.directive
    )


def _option(command: click.Command, word: Sequence[str]) -> click.Option | None:
    options = (option for option in command.params if isinstance(option, click.Option))
    return next((option for option in options if set(word) & set(option.opts)), None)
