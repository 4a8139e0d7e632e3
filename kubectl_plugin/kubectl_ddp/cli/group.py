"""Root of the command line: a click group that imports each command only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from kubectl_ddp.cli.registry import ADDED_COMMANDS, ALIASES, COMMANDS, SECTIONS
from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.entry_points import load_entry_point

EPILOG = (
    "Flags follow the command, as with every kubectl plugin. 'get' is 'list', 'describe' is 'status', 'run' is "
    "'submit', and 'cancel' is 'suspend'. A command that reads a job looks for its name on this "
    "machine first, then in the cluster. One that changes a job requires --local or --context if both have it."
)


class LazyGroup(click.Group):
    """Click group with the commands of :mod:`kubectl_ddp.cli.registry`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        name = ALIASES.get(cmd_name, cmd_name)
        return load_command(name) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS and word not in ALIASES and not word.startswith("-"):
            if word == "help":
                return self._resolve_help(ctx, args[1:])
            from kubectl_ddp.cli.internal.suggestions import suggest_command  # noqa: PLC0415 - only for errors

            raise UsageError(f"There is no command '{word}'.", hint=suggest_command(args, ctx.command_path))
        return super().resolve_command(ctx, args)

    def _resolve_help(self, ctx: click.Context, words: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve ``help COMMAND`` as ``COMMAND --help``."""
        if not words:
            click.echo(ctx.get_help())
            ctx.exit()
        return self.resolve_command(ctx, [words[0], "--help"])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])


def load_command(name: str) -> click.Command:
    """Import the command of this name. Raises DdpError if it is in a package that is not installed."""
    entry = COMMANDS[name]
    if entry.module is None:
        command = load_entry_point(ADDED_COMMANDS, entry.attribute)
    else:
        command = getattr(importlib.import_module(f"kubectl_ddp.cli.{entry.module}"), entry.attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"'{name}' is not a click command")
    return command


def root() -> click.Group:
    """Return the group with all commands."""
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}
    return LazyGroup(
        name="ddp",
        help="Submit, watch and understand PyTorch training, on Kubernetes or on this machine.",
        epilog=EPILOG,
        context_settings=settings,
        invoke_without_command=True,
        callback=_help_without_command,
        params=[
            click.Option(
                ["-V", "--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Print the version.",
            )
        ],
    )


def _version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    """Print the version, as the command ``version`` does."""
    if is_asked:
        from kubectl_ddp.cli.setup.program import version_text  # noqa: PLC0415 - reads the disk

        click.echo(version_text())
        context.exit()


def _help_without_command() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
