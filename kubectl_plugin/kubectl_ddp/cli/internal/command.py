"""Command line of every command: its flags, help, examples, and the words that it passes on.

:class:`GroupedHelpCommand` is the class of every command. ``--help`` shows common flags, ``--help-all`` all of them.
:func:`grouped_option` declares a flag with its group; flags declared by :func:`click.option` are the command's own.
:func:`shared_options` adds the flags of all commands, with kubectl's names, and passes their values as
:class:`Options`. Words of kubectl for kinds of objects are accepted, as in ``get jobs``, ``describe job NAME`` and
``logs pod/NAME``.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from kubectl_ddp.backends.access import parse_timeout
from kubectl_ddp.backends.select import Where, target_backends
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import DdpError, NoSuchJob, NotFound, UsageError, suggest_close_match
from kubectl_ddp.util.process import location_context, program

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "init": (
        "train.py --image example.com/train --nnodes 2 --gpus 8",
        "train.py --image example.com/train --nnodes 1:2 --gpus 0",
    ),
    "submit": (
        "train.py --local --nproc 2 --follow",
        "train.py --nnodes 4 --gpus 8 --image example.com/train:1",
        "-f job.ddp.yaml --set nnodes=2:8 --dry-run",
    ),
    "preflight": ("train.py --nnodes 4 --gpus 8 --image example.com/train:1", "-f job.ddp.yaml --strict"),
    "capacity": ("", "--gpu-type H100 --queue research"),
    "render": ("-f job.ddp.yaml", "train.py --nnodes 4 --gpus 8 --explain"),
    "clone": ("digits --name digits-long -- train --epochs 100", "digits --name digits-wide --nnodes 8"),
    "presets": ("", "aws-efa"),
    "explain": ("", "nnodes"),
    "list": ("", "-A -o wide --sort-by .created", "-o custom-columns=NAME:.name,STEP:.step --watch"),
    "status": ("digits", "digits --ranks", "digits -o jsonpath={.state}"),
    "why": ("", "digits"),
    "hang": ("digits --timeout 120",),
    "bundle": ("digits -O digits.tar.gz",),
    "logs": ("digits --rank 0 --tail 20", "digits --rank failed", "digits -f --dedup"),
    "events": ("digits --warnings",),
    "top": ("digits", "digits --once"),
    "report": (
        "digits -o digits.html --open",
        "digits --from prometheus https://prometheus.example.com",
        "digits digits-2",
    ),
    "history": ("", "digits -o json"),
    "dashboard": ("digits --grafana https://grafana.example.com",),
    "wait": ("digits --for=complete --timeout 1h", "digits --for=step=100"),
    "exec": ("digits --rank 3 -- nvidia-smi", "digits -it"),
    "profile": ("digits --rank 3 --steps 5",),
    "port-forward": ("digits --rank 3",),
    "scale": ("digits --nnodes 4", "digits --nnodes 4 --dry-run"),
    "restart": ("digits --wait",),
    "suspend": ("digits",),
    "resume": ("digits --wait",),
    "delete": ("digits", "--local --all --yes"),
    "prune": ("--older-than 7d --dry-run",),
    "config": ("", "set image example.com/train:1", "unset image"),
    "completion": ("bash",),
    "doctor": ("", "--local"),
    "version": ("",),
}


JOB_TYPES: Final = frozenset(
    word for engine in ENGINES.values() for word in (engine.name, engine.plural, engine.resource, engine.collection)
)
"""Words for jobs: singular and plural of each kind that an engine creates, with and without its API group."""
EVERYTHING: Final = "all"
"""kubectl's word for objects of all kinds; here for all jobs."""
_PLURALS: Final = frozenset(word for engine in ENGINES.values() for word in (engine.plural, engine.collection))

_PODS, _NODES, _QUEUES = "status JOB --ranks", "capacity", "capacity"
_BY_RANK: Final = frozenset({"logs", "exec", "port-forward"})
"""Commands that reach the pod of a rank."""
_OTHER_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pod", "pods", "po"), _PODS),
    **dict.fromkeys(("node", "nodes", "no"), _NODES),
    **dict.fromkeys(("queue", "queues", "localqueue", "localqueues", "clusterqueue", "clusterqueues"), _QUEUES),
    **dict.fromkeys(("event", "events", "ev"), "events JOB"),
    **dict.fromkeys(("namespace", "namespaces", "ns"), "list -A"),
}
"""Word for another kind of object → the command that shows such objects."""


def check_type(word: str) -> None:
    """Raise UsageError if an argument names a kind of object other than jobs."""
    if command := _OTHER_TYPES.get(word.lower()):
        context = click.get_current_context(silent=True)
        called = context.command.name if context is not None else None
        hint = f"'{program()} {command}' shows them."
        if command == _PODS and called in _BY_RANK:
            hint = f"'{program()} {called} JOB --rank N' takes the pod of a rank."
        raise UsageError(f"'{word}' names no jobs.", hint=f"{hint} Write 'job/{word}' for a job of that name.")


def names_after_type(words: Sequence[str], *, lists: bool, path: str) -> list[str]:
    """Return names of jobs without the word for their kind, as in ``job digits``.

    A single word for one job, such as ``job``, is a name, unless the command lists jobs.

    Args:
        words: Positional words of a command line.
        lists: True if the command shows all jobs without a name.
        path: Program and command, for the error.

    Raises:
        UsageError: If the words name another kind of object, or a command for one job gets a plural alone.
    """
    if not words:
        return []
    kind = words[0].lower()
    check_type(kind)
    if kind == EVERYTHING and lists and len(words) == 1:
        return []
    if kind not in JOB_TYPES:
        return [*words]
    if len(words) > 1 or lists:
        return [*words[1:]]
    if kind in _PLURALS:
        raise UsageError(
            f"'{words[0]}' names no job.", hint=f"Write '{path} NAME'; '{program()} get jobs' lists all names."
        )
    return [*words]


P = ParamSpec("P")
R = TypeVar("R")

OWN: Final = "Options"
OUTPUT: Final = "Output"
CONNECTION: Final = "Connection"
SHOWS_ALL: Final = "kubectl_ddp.help_shows_all"
WORDS_AFTER_DASHES: Final = "kubectl_ddp.words_after_dashes"

JSONPATH: Final = "jsonpath="
CUSTOM_COLUMNS: Final = "custom-columns="
EXPRESSIONS: Final[Mapping[str, str]] = {
    JSONPATH: "'{.items[*].name}'",
    CUSTOM_COLUMNS: "NAME:.name,STEP:.step",
}
"""Form of output that an expression follows → an example of one."""


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


class GroupedHelpCommand(click.Command):
    """Command whose help has groups of flags and examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # click keeps the help option that it makes first, also if that was without the group.
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
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

        at = list(positional_indexes(self, args))
        words = [args[index] for index in at]
        remaining = names_after_type(words, lists=self.name == "list", path=path)
        return args if len(remaining) == len(words) else [*args[: at[0]], *args[at[0] + 1 :]]

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
        with formatter.section("Examples"):
            for words in EXAMPLES[self.name or ""]:
                formatter.write(f"{'':>{formatter.current_indent}}{ctx.command_path} {words}".rstrip() + "\n")


def positional_indexes(command: click.Command, words: Sequence[str]) -> Iterator[int]:
    """Yield the indexes of the words that are neither flags nor values of flags, up to ``--``."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    with_value = {name for option in options if not (option.is_flag or option.count) for name in option.opts}
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


class PassthroughCommand(GroupedHelpCommand):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Where):
    """Values of the shared flags."""

    output: str | None = None
    """Value of ``-o``, such as ``json`` or ``jsonpath={.name}``; ``None`` for text output."""
    no_headers: bool = False
    """True to print tables without their header line."""
    quiet: bool = False
    """True to print only data and errors."""
    no_color: bool = False
    verbose: bool = False
    """True to print the traceback of an internal error."""

    def print_message(self, text: str) -> None:
        """Print a message that is not data to stderr, unless ``--quiet`` is given."""
        if not self.quiet:
            click.echo(text, err=True)

    def use_color(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether stdout is a terminal and colors are not disabled (https://no-color.org)."""
        refused = self.no_color or environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
        return not refused and sys.stdout.isatty()


class OutputForm(click.Choice[str]):
    """Type of ``-o``: one of several words, or a form with an expression, which is parsed before any request."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value. Raises UsageError for an invalid expression."""
        text = str(value)
        form, equals, expression = text.partition("=")
        if f"{form}=" not in EXPRESSIONS or f"{form}=" not in self.choices:
            return super().convert(value, param, ctx)
        if not expression:
            raise UsageError(f"-o {text} lacks its expression.", hint=f"Write '-o {form}={EXPRESSIONS[f'{form}=']}'.")
        _parse_expression(form + equals, expression)
        return text


def _parse_expression(form: str, expression: str) -> None:
    from kubectl_ddp.util.jsonpath import parse_columns, parse_template  # noqa: PLC0415 - rarely needed

    parse_template(expression) if form == JSONPATH else parse_columns(expression)


_output = functools.partial(grouped_option, group=OUTPUT)
_place = functools.partial(grouped_option, group=CONNECTION)


def _checked_timeout(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Validate a duration before any request. Raises UsageError."""
    if text is not None:
        parse_timeout(text)
    return text


def _with_nearest(error: NoSuchJob, options: Options) -> NotFound:
    """Return the error with a suggestion of a similarly named job, if there is one and jobs can be listed."""
    from kubectl_ddp.observe.job_list import read_jobs  # noqa: PLC0415 - only for this error

    try:
        found = read_jobs(target_backends(options), all_namespaces=options.all_namespaces, warn=lambda _: None)
    except DdpError:
        found = []
    names = [str(snapshot.job["metadata"]["name"]) for _, snapshot in found]
    return NotFound(error.message, hint=suggest_close_match(error.name, names) or error.hint)


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
    output = [
        _output("-q", "--quiet", is_flag=True, help="Print data and errors only."),
        _output("--no-color", is_flag=True, is_common=False, help="Print no color; NO_COLOR does the same."),
        _output("-v", "--verbose", is_flag=True, is_common=False, help="Print the traceback of an unexpected error."),
    ]
    place = [
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

        for option in reversed([*shape, *output, *place]):
            option(with_options)
        return with_options

    return decorate
