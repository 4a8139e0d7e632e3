"""Words after ``--``, which are passed to another program."""

from __future__ import annotations

from typing import Final

import click

from kubectl_ddp.cli.internal.command_help import HelpfulCommand

WORDS_AFTER_DASHES: Final = "kubectl_ddp.words_after_dashes"


class PassthroughCommand(HelpfulCommand):
    """Command that does not parse the words after ``--``. :func:`passthrough_args` returns them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta[WORDS_AFTER_DASHES], args = tuple(args[split + 1 :]), args[:split]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]..."]


def passthrough_args() -> tuple[str, ...] | None:
    """Return the words after ``--`` of the current call; ``None`` without a ``--``."""
    words: tuple[str, ...] | None = click.get_current_context().meta.get(WORDS_AFTER_DASHES)
    return words
