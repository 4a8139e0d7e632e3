"""Flags that all commands share, with kubectl's names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import click

from kubectl_ddp.backends.access import parse_timeout
from kubectl_ddp.cli.internal.command_help import CONNECTION, OUTPUT, grouped_option
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.output import OutputForm
from kubectl_ddp.errors import NoSuchJob, NotFound
from kubectl_ddp.util.invocation import location_context

P = ParamSpec("P")
R = TypeVar("R")

_output = functools.partial(grouped_option, group=OUTPUT)
_place = functools.partial(grouped_option, group=CONNECTION)


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
    *outputs: str, all_namespaces: bool = False, has_header_flag: bool = False
) -> Callable[[Callable[Concatenate[Options, P], R]], Callable[P, R]]:
    """Add the shared flags to a command, and pass it an :class:`Options` as its first argument.

    Args:
        outputs: Values of ``-o``; without any, the flag is not added.
        all_namespaces: True to add ``-A``.
        has_header_flag: True to add ``--no-headers``.
    """
    shape = [_output("-o", "--output", type=OutputForm(outputs), help="Print data in this form.")] if outputs else []
    if has_header_flag:
        shape.append(_output("--no-headers", is_flag=True, help="Print tables without their header line."))
    talk = [
        _output("-q", "--quiet", is_flag=True, help="Print data and errors only."),
        _output("--no-color", is_flag=True, is_common=False, help="Print no color; NO_COLOR does the same."),
        _output("-v", "--verbose", is_flag=True, is_common=False, help="Print the traceback of an unexpected error."),
    ]
    where = [
        _place("--local", is_flag=True, help="Use this machine, not a cluster."),
        _place("-n", "--namespace", metavar="NAME", help="Namespace (default: the context's own)."),
        *([_place("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces.")] if all_namespaces else []),
        _place("--context", metavar="NAME", help="Context of the kubeconfig."),
        _place("--kubeconfig", is_common=False, metavar="FILE", help="Path of the kubeconfig file."),
        _place("--cluster", metavar="NAME", is_common=False, help="Cluster (default: the context's own)."),
        _place("--user", metavar="NAME", is_common=False, help="User of the kubeconfig (default: the context's own)."),
        _place("--as", "acting_as", metavar="USER", is_common=False, help="User to impersonate."),
        _place(
            "--as-group",
            "as_groups",
            metavar="GROUP",
            multiple=True,
            is_common=False,
            help="Group to impersonate. May be given several times.",
        ),
        _place(
            "--request-timeout",
            metavar="TIME",
            is_common=False,
            callback=_checked_timeout,
            help="Time limit of a request to the cluster, as in 5s or 1m; 0 for none.",
        ),
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

        for option in reversed([*shape, *talk, *where]):
            option(with_options)
        return with_options

    return decorate
