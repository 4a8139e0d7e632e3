"""Flags that describe a job, generated from the table of fields, and their values as a layer of the specification."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from kubectl_ddp.cli.internal.command import Options, PassthroughCommand, grouped_option, passthrough_args
from kubectl_ddp.cli.internal.suggestions import (
    check_no_extra_args,
    check_program,
    is_job_file,
    normalize_flag,
    suggest_flag,
)
from kubectl_ddp.errors import UsageError, suggest_close_match
from kubectl_ddp.spec.fields import FILE_KEYS, flag_of
from kubectl_ddp.spec.job_key import Field, Given, Group, Layer, Origin, OriginKind

if TYPE_CHECKING:
    from kubectl_ddp.client.submission import Prepared
    from kubectl_ddp.code.archive import Code
    from kubectl_ddp.spec.resolve import Resolved

P = ParamSpec("P")
R = TypeVar("R")

SHARED: Final = frozenset({"namespace"})
"""Keys whose flag is shared by all commands."""
COMMON: Final = frozenset(
    {"name", "module", "code", "nnodes", "nproc", "gpus", "cpu", "memory", "image", "env", "mounts", "queue"}
)
"""Keys whose flag is shown without ``--help-all``."""
DRY_RUN: Final = "--dry-run"
DRY_RUNS: Final = ("none", "client", "server")


class ProgramCommand(PassthroughCommand):
    """Command that passes the words after ``--`` to the user's program."""

    allow_extra_args = True
    """Accept words after the script here, because :func:`check_no_extra_args` reports a better error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_script = any(parameter.name == "script" for parameter in self.params)
        if takes_script and args:
            check_program(args[0], ctx.command_path)
        try:
            left = super().parse_args(ctx, _with_values(args))
        except click.NoSuchOption as error:
            raise UsageError(
                f"{ctx.command_path} has no flag '{error.option_name}'.", hint=self._suggest(ctx, error.option_name)
            ) from None
        script = ctx.params.get("script")
        if script is not None:
            check_program(script, ctx.command_path)
            check_no_extra_args(script, left, ctx.command_path)
        elif left:
            raise click.UsageError(f"Got unexpected extra argument ({' '.join(left)})", ctx)
        return left

    def _suggest(self, ctx: click.Context, word: str) -> str:
        """Suggest a flag for a misspelled or foreign one, or the use of ``--`` for a flag of the program."""
        flags = [name for parameter in self.get_params(ctx) for name in parameter.opts if name.startswith("--")]
        if suggestion := suggest_flag(word):
            return suggestion
        suggestion = suggest_close_match(word, flags, cutoff=0.75)
        return f"{suggestion} Flags of the program follow '--': '{ctx.command_path} train.py -- {word} ...'.".strip()


def _with_values(args: list[str]) -> list[str]:
    """Normalize flags, and add the value ``client`` to a ``--dry-run`` without value, as in kubectl.

    The word after ``--dry-run`` is its value only if it is a valid one.
    """
    if "--" in args:  # the rest belongs to the program
        split = args.index("--")
        return [*_with_values(args[:split]), *args[split:]]
    joined: list[str] = []
    for word in map(normalize_flag, args):
        if joined and joined[-1] == DRY_RUN and word in DRY_RUNS:
            joined[-1] = f"{DRY_RUN}={word}"
        else:
            joined.append(word)
    return [f"{DRY_RUN}=client" if word == DRY_RUN else word for word in joined]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """Description of the job on the command line."""

    script: str | None
    words: tuple[str, ...] | None
    """Words after ``--``; ``None`` without a ``--``."""
    file: str | None
    assignments: tuple[str, ...]
    shorthand: str | None
    flags: Mapping[str, Any]
    """Key of the job file → value of its flag."""


def job_options(command: Callable[Concatenate[JobRequest, P], R]) -> Callable[P, R]:
    """Add the flags of a job to a command, and pass it a :class:`JobRequest` as its first argument."""
    return _with_request(command, [*_program_options(), *_options()])


def change_options(command: Callable[Concatenate[JobRequest, P], R]) -> Callable[P, R]:
    """Add the flags of a job to a command that changes an existing job, without script and job file."""
    return _with_request(command, _options())


def _with_request(
    command: Callable[Concatenate[JobRequest, P], R], options: Sequence[Callable[[Any], Any]]
) -> Callable[P, R]:
    @functools.wraps(command)
    def with_request(*args: P.args, **given: P.kwargs) -> R:
        kwargs: dict[str, Any] = given
        script, file = _script_or_file(kwargs.pop("script", None), kwargs.pop("job_file", None))
        request = JobRequest(
            script=script,
            words=passthrough_args(),
            file=file,
            assignments=kwargs.pop("assignments"),
            shorthand=kwargs.pop("shorthand"),
            flags={key: value for key in _keys() if (value := kwargs.pop(parameter_of(key))) not in {None, ()}},
        )
        return command(request, *args, **kwargs)

    for option in reversed(options):
        option(with_request)
    return with_request


def _script_or_file(script: str | None, file: str | None) -> tuple[str | None, str | None]:
    """Return script and job file. A job file may be given as script. Raises UsageError if there are two job files."""
    if script is None or not is_job_file(script):
        return script, file
    if file is not None:
        raise UsageError(f"There are two job files, '{script}' and '{file}'.", hint="Keep one.")
    return None, script


def _keys() -> list[str]:
    return [key for key, field in FILE_KEYS.items() if field.is_flag and key not in SHARED]


def parameter_of(key: str) -> str:
    return f"job_{key.lower()}"


def _program_options() -> list[Callable[[Any], Any]]:
    return [
        click.argument("script", required=False),
        click.option("-f", "--filename", "job_file", metavar="FILE", help="Job file; '-' reads standard input."),
    ]


def _options() -> list[Callable[[Any], Any]]:
    return [
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any key of the job file."),
        grouped_option(
            "-j",
            "shorthand",
            metavar="[MIN:]MAXxN",
            group=Group.SIZE,
            is_common=False,
            help="Nodes and processes in one word, as in 2:8x8.",
        ),
        *(_option(FILE_KEYS[key]) for key in _keys()),
    ]


def _option(field: Field) -> Callable[[Any], Any]:
    many = field.is_map or field.is_list
    more = " May be given several times." if many else ""
    return grouped_option(
        field.flag,
        parameter_of(field.name),
        metavar=field.metavar,
        multiple=many,
        group=field.group,
        is_common=field.name in COMMON,
        help=field.help + more,
    )


def _read_job(request: JobRequest, options: Options, name_suffix: str, under: Layer | None) -> Resolved:
    """Resolve the job from flags, file, preset and defaults. Raises UsageError or NotFound."""
    from kubectl_ddp.client.layers import resolve_job  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.spec.resolve import set_values  # noqa: PLC0415

    layers: list[Layer] = []
    if request.file is not None:
        from kubectl_ddp.spec.job_file import read  # noqa: PLC0415 - imports yaml

        layers.append(read(request.file, lambda text: options.print_message(f"warning: {text}")))
    layers += [set_values(request.assignments), flag_layer(request, options)]
    return resolve_job(layers, options, name_suffix=name_suffix, under=under)


def prepare(
    options: Options,
    request: JobRequest,
    *,
    name_suffix: str = "",
    shown: bool = False,
    under: Layer | None = None,
    code: Code | None = None,
) -> Prepared:
    """Return the job of this command line, with its script checked. Raises UsageError or NotFound.

    Args:
        options: Shared flags.
        request: Job flags.
        name_suffix: Suffix of a name that is generated from the program.
        shown: True if the objects are only printed; then a cluster is assumed unless ``--local`` is given.
        under: Values of another job, which this command line overrides.
        code: Code of that job, which is not read from this machine.
    """
    from kubectl_ddp.client.submission import prepare_job  # noqa: PLC0415 - not needed for help and completion

    resolved = _read_job(request, options, name_suffix, under)
    return prepare_job(resolved, options, shown=shown, packed_code=code)


def flag_layer(request: JobRequest, options: Options) -> Layer:
    """Return the values of the flags. Raises UsageError if two of them contradict each other."""
    layer: dict[str, Given] = {}
    for key, value in request.flags.items():
        layer |= _given(key, value)
    if options.namespace:
        layer["namespace"] = Given(options.namespace, Origin(OriginKind.FLAG, "--namespace"))
    programs = [flag_of(key) for key in ("module", "command") if key in layer]
    if request.script is not None:
        programs.insert(0, f"The script '{request.script}'")
        layer["script"] = Given(request.script, Origin(OriginKind.FLAG, "SCRIPT"))
    if len(programs) > 1:
        raise UsageError(f"{' and '.join(programs)} exclude each other.", hint="Keep the one to run.")
    if request.words is not None:
        layer["args"] = Given(list(request.words), Origin(OriginKind.FLAG, "words after --"))
    return layer | _parse_job_size(request.shorthand, layer)


def _given(key: str, value: Any) -> dict[str, Given]:
    if FILE_KEYS[key].is_map:
        return dict(_entry(key, word) for word in value)
    raw = list(value) if isinstance(value, tuple) else value
    return {key: Given(raw, Origin(OriginKind.FLAG, flag_of(key)))}


def _entry(key: str, word: str) -> tuple[str, Given]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{flag_of(key)}: '{word}' gives no value.", hint=f"Write it as {FILE_KEYS[key].metavar}.")
    return f"{key}.{name}", Given(value, Origin(OriginKind.FLAG, f"{flag_of(key)} {name}"))


def _parse_job_size(word: str | None, layer: Layer) -> dict[str, Given]:
    if word is None:
        return {}
    match = re.fullmatch(r"(\d+(?::\d+)?)x(\d+)", word)
    if match is None:
        raise UsageError(
            f"-j: '{word}' is not nodes x processes.", hint="Write it as '4x8', or '2:8x8' for an elastic job."
        )
    for key in ("nnodes", "nproc"):
        if key in layer:
            raise UsageError(f"-j and {flag_of(key)} say the same thing.", hint="Leave one of them out.")
    origin = Origin(OriginKind.FLAG, "-j")
    return {"nnodes": Given(match[1], origin), "nproc": Given(match[2], origin)}


def print_notes(resolved: Resolved, options: Options) -> None:
    """Print choices that were made automatically to stderr."""
    for note in resolved.notes:
        options.print_message(note)


def warn(resolved: Resolved, options: Options, more: Sequence[str] = ()) -> None:
    """Print choices that were made automatically, and warnings, to stderr."""
    print_notes(resolved, options)
    for warning in [*map(str, resolved.warnings), *more]:
        options.print_message(f"warning: {warning}")
