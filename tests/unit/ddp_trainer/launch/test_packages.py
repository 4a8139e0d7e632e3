"""Packages that an init container installs with the image's pip, for the launcher and its workers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from ddp_trainer.common.constants import Env, Exit
from tests.support.programs import captured

SHOW = "import greeting, subprocess; print('worker', greeting.__file__); subprocess.run(['greet'], check=True)"


def wheel(folder: Path, name: str, *requires: str) -> None:
    """Write a wheel with one module and one program."""
    dependencies = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{dependencies}"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "def main():\n    print('greeted')\n")
        file.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        file.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}-1.0.dist-info/entry_points.txt", "[console_scripts]\ngreet = greeting:main\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")


def run(folder: Path, requirements: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ``ddp_trainer`` with the variables of a pod, and a folder as the package index."""
    variables: dict[str, str] = {Env.PACKAGES: str(folder / "packages"), Env.REQUIREMENTS: requirements}
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PATH": os.defpath, "HOME": str(folder)}
    paths = os.pathsep.join(path for path in sys.path if not path.endswith("-packages"))
    command = [sys.executable, "-m", "ddp_trainer", *words]
    environ = {**variables, **pip, "PYTHONPATH": paths}
    return captured(command, env=environ, cwd=folder)


def test_packages_and_their_programs_are_installed_unless_the_image_has_them(tmp_path: Path) -> None:
    wheel(tmp_path, "greeting", "torch")  # the torch of this Python satisfies it, since the folder has none
    installed = run(tmp_path, "greeting==1.0", "install")
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "show.py").write_text(SHOW)
    done = run(tmp_path, "", "launch", "--standalone", "show.py")
    assert done.returncode == 0, done.stderr
    assert f"worker {tmp_path}/packages/lib/" in done.stdout
    assert "greeted" in done.stdout


def test_pips_error_is_that_of_the_launcher_with_the_way_out(tmp_path: Path) -> None:
    assert run(tmp_path, "nowhere==3", "install").returncode == 0
    done = run(tmp_path, "", "launch", "--standalone", "show.py")
    assert done.returncode == Exit.USAGE
    assert done.stderr == (
        "ddp-launch: pip could not install the requirements: No matching distribution found for nowhere==3. "
        "--build of submit makes an image with the packages instead.\n"
    )
