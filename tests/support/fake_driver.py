"""A replacement for the driver's ``libcuda.so.1``, compiled from ``samples/fake_cuda_driver.c``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "samples" / "fake_cuda_driver.c"


def compiled(folder: Path) -> Path:
    """Return the library, built in ``folder``; skip the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return library
