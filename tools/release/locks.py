"""Locks: every package that users, images and builds install, with its version and the digests of its files.

A lock holds for Python 3.11 and newer on every platform (markers tell them apart); versions are those of
``constraints.txt`` where it names them. ``uv`` resolves, pip installs: ``pip install --require-hashes -r locks/…``.

torch's wheels without CUDA are not on the package index, so their lock is written only where the index that has them is
named, and lists the files that were there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.release.errors import CannotRelease, run_program
from tools.release.project import LOCKS, ROOT, normalize_name, pyproject

CUDA: Final = ("nvidia-", "cuda-", "triton")
"""What torch's wheels with CUDA bring along begins with these."""


@dataclass(frozen=True)
class Lock:
    """One file of ``locks/``."""

    name: str
    what: str
    """A sentence for its first line."""
    requirements: Callable[[], list[str]]
    is_apart: bool = False
    """Whether its environment is separate, without the versions of ``constraints.txt``."""
    without_cuda: bool = False
    """Leave torch out, and what only its wheels with CUDA need."""

    @property
    def path(self) -> Path:
        return LOCKS / f"{self.name}.txt"


def of_the_plugin() -> list[str]:
    """Return the dependencies of ``pip install kubectl-ddp``."""
    return list(pyproject()["project"]["dependencies"])


def of_the_trainer() -> list[str]:
    """Return the dependencies of a pod: clients of Prometheus and NVML, and the extra ``trainer``."""
    project = pyproject()["project"]
    clients = [
        line for line in project["dependencies"] if normalize_name(line) in {"prometheus-client", "nvidia-ml-py"}
    ]
    return clients + project["optional-dependencies"]["trainer"]


def torch_requirement() -> list[str]:
    """Return the requirement of torch, which is on Linux a build with CUDA."""
    return [requirement for requirement in of_the_trainer() if normalize_name(requirement) == "torch"]


ALL: Final = (
    Lock("plugin", "What `kubectl ddp` needs.", of_the_plugin),
    Lock("torch-cuda", "torch with CUDA, for the image's target cuda.", torch_requirement),
    Lock("trainer", "What pods need beside torch.", of_the_trainer, without_cuda=True),
    Lock("build", "What builds the wheel.", lambda: list(pyproject()["build-system"]["requires"])),
    Lock("release", "What the release's own checks need.", lambda: list(pyproject()["dependency-groups"]["release"])),
    Lock("scan", "What `make checkov` runs.", lambda: list(pyproject()["dependency-groups"]["scan"]), is_apart=True),
    Lock("site", "What `make site` runs.", lambda: list(pyproject()["dependency-groups"]["site"])),
)
"""Written in this order: the trainer's lacks the packages of torch-cuda's."""

TORCH_CPU: Final = LOCKS / "torch-cpu.txt"


def pinned_versions(text: str) -> dict[str, str]:
    """Name to version of every package that a lock, or constraints, name."""
    lines = [line.split(";")[0].rstrip(" \\") for line in text.splitlines() if "==" in line and line[0] not in "# "]
    return {normalize_name(line): line.partition("==")[2] for line in lines}


def write(uv: Path, torch_index: str | None) -> list[str]:
    """Write all locks again, and return a line for each. Raises CannotRelease."""
    LOCKS.mkdir(exist_ok=True)
    lines = []
    for lock in ALL:
        _compile(uv, lock)
        lines.append(f"{lock.path.relative_to(ROOT)}: {len(pinned_versions(lock.path.read_text()))} packages")
    version = pinned_versions((ROOT / "constraints.txt").read_text())["torch"]
    if torch_index:
        _compile_torch_cpu(uv, version, torch_index)
    elif pinned_versions(TORCH_CPU.read_text())["torch"] != f"{version}+cpu":
        raise CannotRelease(
            f"locks/torch-cpu.txt is not for torch {version}, and its wheels lie on an index of their own: name it, as "
            "PyTorch's installation page tells: make lock TORCH_INDEX=URL."
        )
    return lines


def _compile(uv: Path, lock: Lock) -> None:
    with tempfile.TemporaryDirectory() as room:
        wanted = Path(room, "wanted.in")
        wanted.write_text("\n".join(lock.requirements()))
        words: list[str | Path] = [] if lock.is_apart else ["--constraints", ROOT / "constraints.txt"]
        if lock.without_cuda:
            torch_lock = next(other for other in ALL if other.name == "torch-cuda")
            cuda = [name for name in pinned_versions(torch_lock.path.read_text()) if name.startswith(CUDA)]
            excluded = Path(room, "excluded.txt")
            excluded.write_text("\n".join(cuda))
            words += ["--excludes", excluded, "--no-emit-package", "torch"]
        _run_uv_compile(uv, wanted, lock.path, *words)
    lock.path.write_text(f"# {lock.what} Written by `make lock`.\n{lock.path.read_text()}")


def _compile_torch_cpu(uv: Path, version: str, index: str) -> None:
    with tempfile.TemporaryDirectory() as room:
        wanted = Path(room, "wanted.in")
        wanted.write_text(f"torch=={version}+cpu")
        _run_uv_compile(uv, wanted, TORCH_CPU, "--no-deps", "--index", index)
    what = "torch without CUDA, for the image's target cpu. Written by `make lock TORCH_INDEX=URL`."
    TORCH_CPU.write_text(f"# {what}\n{TORCH_CPU.read_text()}")


def _run_uv_compile(uv: Path, wanted: Path, lock: Path, *words: str | Path) -> None:
    run_program(
        *(uv, "pip", "compile", "--no-config", "--quiet", "--universal", "--python-version", "3.11"),
        *("--generate-hashes", "--no-header", "--no-annotate", *words, "--output-file", lock, wanted),
    )
