"""Help of a command: flags in groups, the common ones by default, and examples.

:class:`HelpfulCommand` is the class of every command. ``--help`` shows common flags, ``--help-all`` all of them.
:func:`grouped_option` declares a flag with its group; flags declared by :func:`click.option` are the command's own.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _is_common(parameter: click.Parameter) -> bool:
    return not isinstance(parameter, GroupedOption) or parameter.is_common


def _show_all(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
