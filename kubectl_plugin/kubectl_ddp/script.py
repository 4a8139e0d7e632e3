"""A script of this machine: looked at before anything is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

from kubectl_ddp.code import ignore
from kubectl_ddp.code.credentials import holds_credentials, reject_credentials
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.invocation import location_flags, program
from kubectl_ddp.nearest import suggest_file
from kubectl_ddp.render import Code

NOTEBOOK: Final = ".ipynb"
SHELLS: Final[Mapping[str, str]] = {".sh": "sh", ".bash": "bash", ".zsh": "zsh", ".ksh": "ksh", ".fish": "fish"}
"""Ending of a shell script → the shell that runs it."""

LARGEST_BYTES: Final = 900 * 1024
"""A ConfigMap holds 1 MiB, its own names included."""


def check_script(path: str) -> Path:
    """The absolute path of a script that can be run here. Raises UsageError."""
    script = Path(path)
    if script.is_dir():
        raise UsageError(
            f"'{path}' is a directory, not a script.", hint=f"Name the file in it, as in '{path.rstrip('/')}/train.py'."
        )
    check_is_python(script)
    return script.resolve()


def check_is_python(script: Path) -> None:
    """Refuse a notebook or a shell script, which Python would run as something else. Raises UsageError or NotFound.

    A file that is named ``*.py`` is taken for Python, whatever its first line names.
    """
    first = _read(script).partition(b"\n")[0]
    kind = script.suffix.lower()
    if kind == NOTEBOOK:
        raise UsageError(
            f"'{script}' is a notebook, not a script.",
            hint=f"'jupyter nbconvert --to script {script}' makes a script of it; submit that.",
        )
    if kind in SHELLS or (kind != ".py" and first.startswith(b"#!") and b"python" not in first):
        raise UsageError(
            f"'{script}' is no Python script.",
            hint=f"Send its directory and run it as a program: '{program()} submit --code {script.parent} "
            f'--command "{_interpreter(kind, first)} {script.name}"{location_flags()}\'.',
        )


def _interpreter(kind: str, first: bytes) -> str:
    """What runs a script that is not Python: its first line names it, or its ending."""
    named = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
    words = [word for word in named if not word.endswith("/env")]
    return " ".join([PurePath(words[0]).name, *words[1:]]) if words else SHELLS.get(kind, "sh")


def read_script(path: str) -> Code:
    """A script alone as it travels to a cluster. Raises UsageError when it cannot."""
    check_script(path)
    script, data = Path(path), _read(Path(path))
    _reject_credentials(script, data)
    elsewhere = "Put it into the image and run it with --module or --command."
    if len(data) > LARGEST_BYTES:
        raise UsageError(
            f"'{path}' has {len(data)} bytes, and at most {LARGEST_BYTES} can travel with a job.", hint=elsewhere
        )
    if not re.fullmatch(r"[-._A-Za-z0-9]+", script.name):
        raise UsageError(
            f"'{script.name}' cannot travel under this name.",
            hint="Rename it: letters, digits, '-', '_' and '.' are allowed.",
        )
    try:
        return Code(script.name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is no UTF-8 text: byte {error.start} is wrong.", hint=elsewhere) from None


def _reject_credentials(script: Path, data: bytes) -> None:
    """Unless a ``.ddpignore`` beside the script allows it."""
    beside = script.with_name(ignore.OURS)
    text = beside.read_text(encoding="utf-8", errors="replace") if beside.is_file() else ""
    if not ignore.allows(ignore.read(text, is_ours=True), script.name) and holds_credentials(str(script), data):
        reject_credentials("The script", [str(script)])


def _read(script: Path) -> bytes:
    try:
        return script.read_bytes()
    except FileNotFoundError:
        raise NotFound(
            f"There is no script '{script}'.",
            hint=suggest_file(str(script))
            or f"What lies in the image is run with '{program()} submit "
            f'--command "python {script}"{location_flags()}\'.',
        ) from None
    except OSError as error:
        raise UsageError(
            f"The script '{script}' cannot be read: {error.strerror}.", hint="Name a file you may read."
        ) from None
