"""Packages that a job needs beyond its image: ``python -m ddp_trainer install`` installs them into a volume.

:func:`main` runs in an init container with the image's own pip. :func:`activate` adds the packages to the environment
of the launcher and its workers. A package that the image has already, such as torch, is not installed again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.net.arguments import HELP_HINT, ArgumentParser

_DESCRIPTION: Final = (
    f"Install the lines of ${Env.REQUIREMENTS} into the directory ${Env.PACKAGES} with the pip of this Python, in an "
    "init container of a job with requirements."
)
_ERROR: Final = "error.txt"
_BUILD: Final = "--build of submit makes an image with the packages instead."


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    return ArgumentParser(LaunchError, hint=HELP_HINT, prog="python -m ddp_trainer install", description=_DESCRIPTION)


def main(arguments: Sequence[str]) -> int:
    """Install the packages, and return the exit code.

    The launcher reports an error of pip, because engines would start a failed init container again.
    """
    try:
        argument_parser().parse_args(arguments)
    except LaunchError as error:
        print(f"ddp-launch: {error}", file=sys.stderr)
        return error.exit_code
    directory = Path(os.environ[Env.PACKAGES])
    venv.create(directory, with_pip=False, clear=True)
    # pip then finds the packages of the image, and leaves those that satisfy a requirement.
    _site(directory, "image.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(os.environ[Env.REQUIREMENTS])
        file.flush()
        words = ["-m", "pip", "--python", str(directory / "bin" / "python"), "install", "--no-input", "--no-cache-dir"]
        command = [sys.executable, *words, "--disable-pip-version-check", "--requirement", file.name]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
        assert process.stderr is not None  # noqa: S101 - piped
        errors = []
        for line in process.stderr:
            sys.stderr.write(line)
            errors += [line.removeprefix("ERROR: ").strip()] if line.startswith("ERROR: ") else []
    if process.wait():
        none = f"pip of {sys.executable} failed, or the image has none: use another --image"
        problem = f"pip could not install the requirements: {errors[-1].rstrip('.')}" if errors else none
        (directory / _ERROR).write_text(f"{problem}. {_BUILD}")
    return Exit.SUCCESS


def activate(environ: dict[str, str]) -> None:
    """Add the installed packages and their programs to the paths of this process and its workers.

    Raises:
        LaunchError: If pip could not install them.
    """
    directory = Path(environ[Env.PACKAGES])
    if (error := directory / _ERROR).exists():
        raise LaunchError(error.read_text())
    site = str(_site(directory, ""))
    sys.path.append(site)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, environ.get("PYTHONPATH")]))
    environ["PATH"] = os.pathsep.join([str(directory / "bin"), environ.get("PATH", os.defpath)])


def _site(directory: Path, name: str) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return directory / "lib" / version / "site-packages" / name
