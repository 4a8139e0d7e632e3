"""Write the table of one version of torch: ``python -m tools.torch_api VERSION|WHEEL``.

A version is downloaded by pip as the wheel for macOS, the smallest one with the same Python files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tools.torch_api.table import read_layer, table_of, write_table
from tools.torch_api.uses import find_uses

_PLATFORMS: Final = ("macosx_11_0_arm64", "macosx_14_0_arm64")


def download_wheel(version: str, folder: Path) -> Path:
    """Return the wheel of a version, downloaded into a folder.

    Raises:
        subprocess.CalledProcessError: pip found no such version.
    """
    platforms = [f"--platform={platform}" for platform in _PLATFORMS]
    wanted = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", f"--dest={folder}", f"torch=={version}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *platforms, *wanted], check=True)
    return next(folder.glob("torch-*.whl"))


def main(argv: list[str]) -> int:
    """Write one table."""
    if len(argv) != 1:
        print("usage: python -m tools.torch_api VERSION|WHEEL, for example 2.15.0", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        try:
            wheel = Path(argv[0]) if argv[0].endswith(".whl") else download_wheel(argv[0], Path(name))
        except subprocess.CalledProcessError:
            print(f"torch_api: pip cannot download torch {argv[0]}; give another version or a wheel.", file=sys.stderr)
            return 1
        if not zipfile.is_zipfile(wheel):
            print(f"torch_api: {wheel} is not a wheel; give the path of one, or a version.", file=sys.stderr)
            return 1
        version = ".".join(wheel.name.split("-")[1].split(".")[:2])
        print(write_table(version, table_of(read_layer(wheel), find_uses())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
