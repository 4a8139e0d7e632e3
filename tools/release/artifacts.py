"""Wheel, source archive and chart archives, built so that the same commit gives the same bytes.

Each is built in two copies of what git tracks, whose files have different times, and compared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tools.release.errors import CannotRelease, run_program
from tools.release.project import ROOT

OLDEST_HELM = 4
"""Helm 3 stamps archives with the time at which it packs."""


def commit_time(root: Path = ROOT) -> int:
    """Time of the commit, in seconds since 1970; ``SOURCE_DATE_EPOCH`` overrules it, as everywhere."""
    value = os.environ.get("SOURCE_DATE_EPOCH") or run_program("git", "log", "-1", "--format=%ct", cwd=root)
    if not value.strip().isdigit():
        raise CannotRelease(f"SOURCE_DATE_EPOCH is {value!r}, and should be whole seconds since 1970.")
    return int(value)


def copy_tracked_files(target: Path, seconds: int, root: Path = ROOT) -> Path:
    """The work tree's tracked files, all with one time."""
    for name in run_program("git", "ls-files", "-z", cwd=root).split("\0"):
        if name and (root / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target / name)
            os.utime(target / name, (seconds, seconds))
    return target


def build_release(room: Path, helm: str | None) -> dict[str, Path]:
    """Build everything twice below ``room``, and return the files by name.

    Raises CannotRelease where the two differ in a byte.
    """
    seconds = commit_time()
    one, other = (_build_once(room / name, when, helm) for name, when in (("one", seconds), ("other", seconds + 7200)))
    differing = sorted(name for name in one.keys() | other.keys() if _digest(one.get(name)) != _digest(other.get(name)))
    if differing:
        raise CannotRelease(f"Built twice of the same files, these differ: {', '.join(differing)}.")
    _rebuild(one, room)
    return one


def _rebuild(files: dict[str, Path], room: Path) -> None:
    """Build the wheel of the source archive: who has that alone has all."""
    [archive] = [path for name, path in files.items() if name.endswith(".tar.gz")]
    with tarfile.open(archive) as source:
        source.extractall(room / "unpacked", filter="data")
    [unpacked] = (room / "unpacked").iterdir()
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    again = room / "again"
    run_program(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", again, cwd=unpacked, environ=environ)
    [wheel] = again.iterdir()
    if _digest(wheel) != _digest(files.get(wheel.name)):
        raise CannotRelease(f"{wheel.name} is another one when it is built of {archive.name}.")


def _build_once(room: Path, touched: int, helm: str | None) -> dict[str, Path]:
    source, made = room / "source", room / "dist"
    copy_tracked_files(source, touched)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    run_program(sys.executable, "-m", "hatchling", "build", "-d", made, cwd=source, environ=environ)
    if helm:
        package_charts(source, made, helm)
    return {path.name: path for path in sorted(made.iterdir())}


def package_charts(source: Path, target: Path, helm: str) -> None:
    """An archive of each chart of a copy of the work tree."""
    for chart in sorted(source.glob("charts/*/Chart.yaml")):
        _pack(chart.parent, target, helm)


def _pack(chart: Path, target: Path, helm: str) -> None:
    """One chart, its files at the time of the commit: Helm keeps the times that it finds."""
    seconds = commit_time()
    for path in sorted(chart.rglob("*")):
        os.utime(path, (seconds, seconds))
    run_program(helm, "package", chart, "--destination", target)


def find_reproducible_helm(candidates: Iterator[Path]) -> str:
    """The first Helm that packs the same bytes of the same files. Raises CannotRelease where there is none."""
    for path in candidates:
        major = run_program(path, "version", "--short").strip().removeprefix("v").split(".")[0]
        if int(major) >= OLDEST_HELM:
            return str(path)
    raise CannotRelease("Packing charts to the byte needs Helm 4; put it on PATH, or run `make tools`.")


def _digest(path: Path | None) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""


def checksum_lines(files: dict[str, Path]) -> str:
    """The lines that ``sha256sum --check`` reads."""
    return "".join(f"{_digest(path)}  {name}\n" for name, path in sorted(files.items()))
