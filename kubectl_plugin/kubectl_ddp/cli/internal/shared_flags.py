"""Flags that all commands share, with kubectl's names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import click

from kubectl_ddp.backends.access import parse_timeout
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.errors import NoSuchJob, NotFound
from kubectl_ddp.util.invocation import location_context

P = ParamSpec("P")
R = TypeVar("R")


def _checked_timeout(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Validate a duration before any request. Raises UsageError."""
    if text is not None:
        parse_timeout(text)
    return text


def _with_nearest(error: NoSuchJob, options: Options) -> NotFound:
    """Return the error with a suggestion of a similarly named job, if there is one."""
    from kubectl_ddp.cli.internal.job_lookup import suggest_job  # noqa: PLC0415 - only for this error

    return NotFound(error.message, hint=suggest_job(error.name, options) or error.hint)


def shared_options(
    *outputs: str, all_namespaces: bool = False
) -> Callable[[Callable[Concatenate[Options, P], R]], Callable[P, R]]:
    """Add the shared flags to a command, and pass it an :class:`Options` as its first argument.

    Args:
        outputs: Values of ``-o``; without any, the flag is not added.
        all_namespaces: True to add ``-A``.
    """
    where = [
        click.option("--local", is_flag=True, help="On this machine, not in a cluster."),
        click.option("-n", "--namespace", metavar="NAME", help="Namespace; the context's own by default."),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option("--cluster", metavar="NAME", help="Cluster of the kubeconfig; the context's own by default."),
        click.option("--user", metavar="NAME", help="User of the kubeconfig; the context's own by default."),
        click.option("--kubeconfig", metavar="FILE", help="File that names the clusters."),
        click.option("--as", "acting_as", metavar="USER", help="Act as this user in the cluster."),
        click.option("--as-group", "as_groups", metavar="GROUP", multiple=True, help="In this group, too; repeatable."),
        click.option(
            "--request-timeout",
            metavar="TIME",
            callback=_checked_timeout,
            help="Give up on a request to the cluster after this time, as in 5s or 1m; 0 is never.",
        ),
    ]
    if all_namespaces:
        where.append(click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces."))
    shape = (
        [click.option("-o", "--output", type=click.Choice(outputs), help="Print data in this form.")] if outputs else []
    )
    talk = [
        click.option("-q", "--quiet", is_flag=True, help="Print data and errors only."),
        click.option("--no-color", is_flag=True, help="Print no colour; NO_COLOR does the same."),
        click.option("-v", "--verbose", is_flag=True, help="Show where an unexpected error came from."),
    ]

    def decorate(command: Callable[Concatenate[Options, P], R]) -> Callable[P, R]:
        @functools.wraps(command)
        def with_options(*args: P.args, **kwargs: P.kwargs) -> R:
            given = {name: kwargs.pop(name) for name in Options.__dataclass_fields__ if name in kwargs}
            options = Options(**given)  # type: ignore[arg-type]  # click passes them by name
            with location_context("" if options.local else options.flags):  # local jobs have no namespace
                try:
                    return command(options, *args, **kwargs)
                except NoSuchJob as error:
                    raise _with_nearest(error, options) from None

        for option in reversed([*shape, *where, *talk]):
            option(with_options)
        return with_options

    return decorate
