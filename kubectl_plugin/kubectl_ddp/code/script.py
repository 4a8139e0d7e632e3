"""Checks of a local script before its submission."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from kubectl_ddp.code import ignore
from kubectl_ddp.code.archive import PART_BYTES, Code, holds_credentials, pack_script, reject_credentials
from kubectl_ddp.errors import NotFound, UsageError, suggest_file
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.util.process import location_flags, program

NOTEBOOK: Final = ".ipynb"
SHELLS: Final[Mapping[str, str]] = {".sh": "sh", ".bash": "bash", ".zsh": "zsh", ".ksh": "ksh", ".fish": "fish"}
"""Suffix of a shell script → the shell that runs it."""

_STARTS: Final = re.compile(
    r"(?i)(^|[._])(run|call|check_call|check_output|popen|system|getoutput|exec\w*|spawn\w*|\w*shell)$"
)
"""Pattern of the functions that start a program, as in subprocess, os, asyncio and pexpect."""


def check_script(path: str) -> Path:
    """Return the absolute path of a script that Python can run. Raises UsageError."""
    script = Path(path)
    if script.is_dir():
        raise UsageError(
            f"'{path}' is a directory, not a script.", hint=f"Name the file in it, as in '{path.rstrip('/')}/train.py'."
        )
    check_is_python(script)
    return script.resolve()


def check_is_python(script: Path) -> None:
    """Reject a notebook or a shell script, which Python cannot run. Raises UsageError or NotFound.

    A file named ``*.py`` is accepted, whatever its first line is.
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
            f"'{script}' is not a Python script.",
            hint=f"Send its directory and run it as a program: '{program()} submit --code {script.parent} "
            f'--command "{_interpreter(kind, first)} {script.name}"{location_flags()}\'.',
        )


def script_warnings(script: Path) -> Iterator[Finding]:
    """Yield warnings about what a script imports."""
    data = _read(script)
    if b"horovod" in data and "horovod" in imported_modules(data):
        yield warning(
            f"'{script}' imports horovod, which does not run under ddp-launch.",
            "docs/howto/migrate-horovod.md lists the replacement of each call.",
        )


def launcher_warnings(script: Path, launchers: Collection[str]) -> Iterator[Finding]:
    """Yield a warning if a Python or shell script starts one of these launchers, except with ``--standalone``."""
    data = _read(script)
    texts = _subprocess_arguments(data) if script.suffix == ".py" else _commands(data)
    yield from _launcher_warning(f"'{script}'", texts, launchers)


def command_launcher_warnings(words: Sequence[str], launchers: Collection[str]) -> Iterator[Finding]:
    """Yield a warning if an argument of a command is a shell script, as after ``bash -c``, that starts a launcher."""
    texts = [word for word in words if len(word.split()) > 1]
    yield from _launcher_warning("The command", _commands("\n".join(texts).encode()), launchers)


def _launcher_warning(what: str, texts: Sequence[str], launchers: Collection[str]) -> Iterator[Finding]:
    for text in texts:
        words = text.split()
        pairs = {" ".join(words[place : place + 2]) for place in range(len(words))}
        names = sorted(({PurePath(word).name for word in words} | pairs).intersection(launchers))
        if names and not {"--standalone", "install"}.intersection(words):
            yield warning(
                f"{what} starts {names[0]}, and the launcher of the job starts the ranks already: each would start "
                "its own.",
                "Submit the program behind it, and set nnodes and nproc; or give it --standalone; or set "
                "--torchrun-shim true for torchrun.",
            )
            return


def _subprocess_arguments(source: bytes) -> list[str]:
    """Return the texts in each call that may start a program, and in each value that such a source assigns."""
    import ast  # noqa: PLC0415 - only for sources that are looked at

    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return []
    calls = [node for node in nodes if isinstance(node, ast.Call) and _STARTS.search(ast.unparse(node.func))]
    texts = (ast.List, ast.Tuple, ast.Constant, ast.JoinedStr, ast.BinOp)
    assigned = [node.value for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, texts)]
    inner = [
        [node.value for node in ast.walk(outer) if isinstance(node, ast.Constant)]
        for outer in (*calls, *(assigned if calls else ()))
    ]
    return [" ".join(value for value in values if isinstance(value, str)) for values in inner]


def _commands(source: bytes) -> list[str]:
    """Return the commands of a shell script, without comments, each on one line."""
    text = source.decode(errors="replace").replace("\\\n", " ")
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def sibling_modules(script: Path) -> list[Path]:
    """Return the Python files beside a script that it imports, directly or by one another; packages as a whole."""
    found: dict[Path, None] = {}
    new = [script]
    while new:
        names = {name for file in new for name in imported_modules(_read(file))}
        files = [file for name in sorted(names) for file in _module_files(script.parent, name)]
        new = [file for file in files if file not in found and file != script]
        found |= dict.fromkeys(new)
    return [*found]


def _module_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a module or a package in a directory; a package has a Python file at its top."""
    file, package = folder / f"{name}.py", folder / name
    packed = [*package.rglob("*.py")] if any(package.glob("*.py")) else []
    return packed or ([file] if file.is_file() else [])


def imported_modules(source: bytes) -> frozenset[str]:
    r"""Return the top-level modules that a Python source imports; empty if its syntax is invalid.

    >>> sorted(imported_modules(b"import torch.nn, os\nfrom lib.word import WORD"))
    ['lib', 'os', 'torch']
    """
    import ast  # noqa: PLC0415 - only for sources that are looked at

    found: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(module.name.partition(".")[0] for module in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def _interpreter(kind: str, first: bytes) -> str:
    """Return the interpreter of a script that is not Python, from its first line or its suffix."""
    named = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
    words = [word for word in named if not word.endswith("/env")]
    return " ".join([PurePath(words[0]).name, *words[1:]]) if words else SHELLS.get(kind, "sh")


def check_script_name(script: Path) -> None:
    """Reject a file name that is not a valid key of a ConfigMap. Raises UsageError."""
    if not re.fullmatch(r"[-._A-Za-z0-9]+", script.name):
        raise UsageError(
            f"'{script.name}' cannot travel under this name.",
            hint="Rename it: letters, digits, '-', '_' and '.' are allowed.",
        )


def read_script(path: str) -> Code:
    """Return a script as code to submit, with the modules beside it that it imports.

    Raises UsageError if it is too large, not UTF-8, or contains credentials.
    """
    check_script(path)
    script, data = Path(path), _read(Path(path))
    if modules := sibling_modules(script):
        try:
            return pack_script(script, modules)
        except OSError as error:
            raise UsageError(f"'{error.filename}', which '{path}' imports, cannot be read: {error.strerror}.") from None
    _reject_credentials(script, data)
    elsewhere = "Put it into the image and run it with --module or --command."
    if len(data) > PART_BYTES:
        raise UsageError(
            f"'{path}' has {len(data)} bytes, and at most {PART_BYTES} can travel with a job.", hint=elsewhere
        )
    check_script_name(script)
    try:
        return Code(script.name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not UTF-8 text: byte {error.start} is invalid.", hint=elsewhere) from None


def _reject_credentials(script: Path, data: bytes) -> None:
    """Reject a script with credentials, unless a ``.ddpignore`` in its directory allows it."""
    beside = script.with_name(ignore.IGNORE_FILE)
    text = beside.read_text(encoding="utf-8", errors="replace") if beside.is_file() else ""
    if not ignore.allows(ignore.read(text, is_ours=True), script.name) and holds_credentials(str(script), data):
        reject_credentials("The script", [str(script)])


def _read(script: Path) -> bytes:
    try:
        return script.read_bytes()
    except FileNotFoundError:
        raise NotFound(
            f"There is no script '{script}'.",
            hint=("Download it, and name the file." if ":/" in str(script) else suggest_file(str(script)))
            or f"Run a script of the image with '{program()} submit --command \"python {script}\"{location_flags()}'.",
        ) from None
    except OSError as error:
        raise UsageError(
            f"The script '{script}' cannot be read: {error.strerror}.", hint="Name a file you may read."
        ) from None
