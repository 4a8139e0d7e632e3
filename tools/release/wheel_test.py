"""The wheel, as a user gets it: installed from its lock into a fresh environment, and asked who it is."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.release.errors import CannotRelease, run_program
from tools.release.project import LOCKS, version

PIP = ("--disable-pip-version-check", "--quiet")


def install(wheel: Path, room: Path) -> Path:
    """A virtual environment with the wheel and what its lock names, every file checked by digest; its Python."""
    run_program(sys.executable, "-m", "venv", "--without-pip", room)
    python = room / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run_program(*pip, "install", *PIP, "--no-deps", "--require-hashes", "--requirement", LOCKS / "plugin.txt")
    run_program(*pip, "install", *PIP, "--no-deps", wheel)
    run_program(*pip, "check", *PIP)
    return python


def check_commands(python: Path) -> None:
    """Run the commands of the wheel. Raises CannotRelease for a wrong version, or if torch was installed with it."""
    output = run_program(python.with_name("kubectl-ddp"), "--version")
    if version() not in output.split():
        raise CannotRelease(f"The installed kubectl-ddp calls itself {output.strip()!r}, and should say {version()}.")
    run_program(python.with_name("ddp-launch"), "--help")
    if list((python.parents[1] / "lib").glob("python3*/site-packages/torch")):
        raise CannotRelease("The command line's lock brings torch, which `kubectl ddp` is to do without.")
