"""``make demo`` prints which torch it installs, and its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.install_torch import describe_download, is_cpu_build


def wheel(path: Path, name: str, version: str, size: int) -> dict[str, Any]:
    """An entry of pip's report for a wheel on this machine."""
    path = path / f"{name}-{version}.whl"
    path.write_bytes(bytes(size))
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": path.as_uri()}}


def test_a_cpu_build_is_printed_with_the_size_of_all_wheels(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "filelock", "3.1", 1_000_000), wheel(tmp_path, "torch", "2.13.0+cpu", 3_000_000)]
    assert is_cpu_build(wheels)
    build = f"torch 2.13.0+cpu, a CPU build, from {tmp_path}/torch-2.13.0+cpu.whl"
    assert describe_download(wheels) == f"Installing {build}: 4 MB with what it needs, 1.0 GB on disk."


def test_libraries_of_cuda_are_named_before_their_download(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "torch", "2.14.1", 1), wheel(tmp_path, "nvidia-nccl-cu13", "2.30", 1)]
    assert not is_cpu_build(wheels)
    text = describe_download(wheels)
    assert "a build for CUDA, as no CPU build was found" in text
    assert text.endswith("4.9 GB on disk; TORCH_INDEX=URL names an index of CPU builds.")
