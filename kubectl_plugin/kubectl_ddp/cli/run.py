"""Entry point of a command: runs it, prints an error as one sentence, and maps its class to the exit code."""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ddp_trainer.common.safe_text import redact_text
from kubectl_ddp.cli.group import root
from kubectl_ddp.cli.registry import ALIASES, COMMANDS
from kubectl_ddp.errors import DdpError, Interrupted, UsageError
from kubectl_ddp.util.process import program
from kubectl_ddp.util.text_table import escaping

BROKEN_PIPE: Final = 128 + 13
"""Exit code after a closed stdout (EPIPE): the same as for a program ended by SIGPIPE, as kubectl is."""


def run(arguments: Sequence[str]) -> int:
    """Run ``kubectl-ddp ARGUMENTS`` and return its exit code. Errors are printed to stderr."""
    if sys.stdout is None:  # closed by the caller (``>&-``): discard the output
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open until exit, like stdout
    with escaping():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        return _call(arguments)
    except click.exceptions.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        return _reader_is_gone()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error is printed as one sentence
        return _fail(_to_ddp_error(error, arguments), arguments)


def _call(arguments: Sequence[str]) -> int:
    group = root()
    with group.make_context(program(), list(arguments)) as context:
        code = group.invoke(context)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _to_ddp_error(error: BaseException, arguments: Sequence[str]) -> DdpError:
    match error:
        case DdpError():
            return error
        case KeyboardInterrupt() | click.Abort():
            return Interrupted("Interrupted.")
        case click.ClickException():
            return _usage_error(error, arguments)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return DdpError(f"{program()} cannot write: {error}.", hint="Free some space.")
    return DdpError(
        f"Something went wrong inside {program()}: {type(error).__name__}: {error}.",
        hint="This is a bug; run again with -v to see where, and please report it.",
    )


def _usage_error(error: click.ClickException, arguments: Sequence[str]) -> DdpError:
    """Convert a click error to a UsageError with the value and a hint."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _command_path(arguments)
    if isinstance(error, click.NoSuchOption):
        return UsageError(f"{path} has no flag '{error.option_name}'.", hint=_flag_hint(error, path, list(arguments)))
    hint = f"Run '{path} --help' for its flags."
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) and error.param.metavar:
        hint = f"Add '{error.param.opts[0]} {error.param.metavar}'."
    message = " ".join(error.format_message().split()).rstrip(".")
    if context is not None and "unexpected extra argument" in message:
        from kubectl_ddp.cli.internal.suggestions import suggest_for_extra_argument  # noqa: PLC0415 - only for errors

        hint = suggest_for_extra_argument(context.command.name or "", program()) or hint
    return UsageError(f"{message[:1].upper()}{message[1:]}.", hint=hint)


def _command_path(arguments: Sequence[str]) -> str:
    """Return program and command for an error without a context, such as a flag without its value."""
    words = [word for word in arguments[:1] if word in COMMANDS or word in ALIASES]
    return " ".join([program(), *words])


def _flag_hint(error: click.NoSuchOption, path: str, arguments: list[str]) -> str:
    if path == program() and error.option_name not in {"--help", "-h"}:
        if arguments == ["-v"]:
            return f"'{path} --version' prints the version."
        at = next((at for at, word in enumerate(arguments) if word in COMMANDS or word in ALIASES), None)
        words = ["list", error.option_name, "..."] if at is None else [arguments.pop(at), *arguments]
        return f"Flags follow the command, as in '{redact_text(' '.join([path, *words]))}'."
    from kubectl_ddp.cli.internal.suggestions import suggest_flag_of  # noqa: PLC0415 - only for errors

    command = error.ctx.command.name if error.ctx is not None else None
    if hint := suggest_flag_of(command or "", error.option_name, program()):
        return hint
    if error.possibilities:
        return f"Did you mean '{error.possibilities[0]}'?"
    return f"Run '{path} --help' for its flags."


def _fail(error: DdpError, arguments: Sequence[str]) -> int:
    if _has_flag(arguments, "-v", "--verbose") and not isinstance(error, UsageError):
        import traceback  # noqa: PLC0415 - only with --verbose

        traceback.print_exc()
    try:
        error.message = redact_text(error.message)  # it may quote a job, a server or a flag
        click.echo(_as_json(error) if _is_json_requested(arguments) else f"error: {error}", err=True)
    except BrokenPipeError:
        return _reader_is_gone()
    return error.exit_code


def _as_json(error: DdpError) -> str:
    return json.dumps(
        {"code": error.exit_code, "reason": type(error).__name__, "message": error.message, "hint": error.hint}
    )


def _plugin_args(arguments: Sequence[str]) -> list[str]:
    """Return the arguments before ``--``. The rest belongs to the script."""
    words = list(arguments)
    return words[: words.index("--")] if "--" in words else words


def _has_flag(arguments: Sequence[str], *flags: str) -> bool:
    return any(word in flags for word in _plugin_args(arguments))


def _is_json_requested(arguments: Sequence[str]) -> bool:
    """Return whether ``-o json`` was given. Searches the words, because their parsing may have failed."""
    words = _plugin_args(arguments)
    joined = {"-ojson", "-o=json", "--output=json"}
    pairs = itertools.pairwise(words)
    return any(word in joined for word in words) or any(
        flag in {"-o", "--output"} and value == "json" for flag, value in pairs
    )


def _reader_is_gone() -> int:
    """Redirect stdout to /dev/null, because the interpreter would report EPIPE again when it flushes stdout at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return BROKEN_PIPE
