"""Help of a command: flags in groups, the common ones by default, and examples.

:class:`HelpfulCommand` is the class of every command. ``--help`` shows common flags, ``--help-all`` all of them.
:func:`grouped_option` declares a flag with its group; flags declared by :func:`click.option` are the command's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click

OWN: Final = "Options"
OUTPUT: Final = "Output"
CONNECTION: Final = "Connection"
SHOWS_ALL: Final = "kubectl_ddp.help_shows_all"


class GroupedOption(click.Option):
    """Flag that is shown under the heading of its group, and only by ``--help-all`` unless it is common."""

    def __init__(self, *declarations: Any, group: str = OWN, is_common: bool = True, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group
        self.is_common = is_common


def grouped_option(
    *names: str, group: str = OWN, is_common: bool = True, **attributes: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a flag as :func:`click.option` does, with a group."""
    return click.option(*names, cls=GroupedOption, group=group, is_common=is_common, **attributes)


class HelpfulCommand(click.Command):
    """Command whose help has groups of flags and examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not all(_is_common(parameter) for parameter in self.params):
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_show_all,
                    help="Show all flags and exit.",
                )
            )

    def make_parser(self, ctx: click.Context) -> Any:
        """Return a parser that finds short flags first. click's own compares them with all long flags before."""
        parser = super().make_parser(ctx)
        parser._long_opt.update(parser._short_opt)  # noqa: SLF001 - click has no public way
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with kubectl's ``-n=NAME`` and ``TYPE NAME`` as ``-n NAME`` and ``NAME``."""
        return super().parse_args(ctx, self._without_type(_split_short_flags(args), ctx.command_path))

    def _without_type(self, args: list[str], path: str) -> list[str]:
        """Return the words without the kind of object in front of a job's name. Raises UsageError."""
        names = [parameter.name for parameter in self.params if isinstance(parameter, click.Argument)]
        if names not in (["job"], ["jobs"]):
            return args
        from kubectl_ddp.cli.internal.resource_types import names_after_type  # noqa: PLC0415 - not needed for the help

        at = list(positional_indexes(self, args))
        words = [args[index] for index in at]
        kept = names_after_type(words, lists=self.name == "list", path=path)
        return args if len(kept) == len(words) else [*args[: at[0]], *args[at[0] + 1 :]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags under the headings of their groups, own flags first."""
        groups: dict[str, list[tuple[str, str]]] = {OWN: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and (ctx.meta.get(SHOWS_ALL) or _is_common(parameter)):
                groups.setdefault(getattr(parameter, "group", OWN), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        from kubectl_ddp.cli.internal.examples import EXAMPLES  # noqa: PLC0415 - only for help

        with formatter.section("Examples"):
            for words in EXAMPLES[self.name or ""]:
                formatter.write(f"{'':>{formatter.current_indent}}{ctx.command_path} {words}".rstrip() + "\n")


def positional_indexes(command: click.Command, words: Sequence[str]) -> Iterator[int]:
    """Yield the indexes of the words that are neither flags nor values of flags, up to ``--``."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    with_value = {name for each in options if not (each.is_flag or each.count) for name in each.opts}
    wants_value = False
    for index, word in enumerate(words):
        if word == "--":
            return
        if wants_value:
            wants_value = False
        elif word.startswith("-") and len(word) > 1:
            is_cluster = not word.startswith("--") and f"-{word[1]}" not in with_value  # as in -fn NAME
            wants_value = (f"-{word[-1]}" if is_cluster else word) in with_value
        else:
            yield index


def _split_short_flags(args: Sequence[str]) -> list[str]:
    """Write a short flag with its value as click does: ``-n=team`` becomes ``-nteam``.

    >>> _split_short_flags(["-n=team", "--name=a", "--", "-x=1"])
    ['-nteam', '--name=a', '--', '-x=1']
    """
    end = args.index("--") if "--" in args else len(args)
    return [re.sub(r"^-([A-Za-z])=", r"-\1", word) for word in args[:end]] + list(args[end:])


def _is_common(parameter: click.Parameter) -> bool:
    return not isinstance(parameter, GroupedOption) or parameter.is_common


def _show_all(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
