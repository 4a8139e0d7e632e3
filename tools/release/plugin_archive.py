"""The command line as krew installs it: one archive for all platforms, and its manifest.

The archive holds the wheel and what its lock names, as Python alone: libraries that have a part in C work without it.
It needs Python 3.11 on the machine, and is read where it lies, so that a read-only home is enough.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.release.artifacts import commit_time
from tools.release.errors import CannotRelease, run_program
from tools.release.project import ROOT, version

PLATFORMS: Final = [(system, machine) for system in ("linux", "darwin") for machine in ("amd64", "arm64")]
URL: Final = "RELEASE_URL"
"""Variable with the address below which the files of a release are published."""
_LEFT_OUT: Final = (".so", ".pyc", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_PROGRAM: Final = '''\
#!/usr/bin/env python3
"""kubectl ddp, installed by krew."""
import os
import sys

if sys.version_info < (3, 11):
    sys.exit(f"kubectl ddp: {sys.executable} is older than Python 3.11; install a newer one.")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "packages"))

from kubectl_ddp.__main__ import main

sys.exit(main())
'''
_JOB: Final = ("submit", "train.py", "--dry-run=client", "--image", "registry.example.com/train:1", "--engine", "job")


def build_archive(python: Path, target: Path) -> tuple[Path, Path]:
    """Write archive and manifest into ``target``, and return them.

    Args:
        python: Python of an environment into which the wheel was installed from its lock.
        target: An existing folder.
    """
    [packages] = python.parents[1].glob("lib/python3*/site-packages")
    archive = target / f"kubectl-ddp-krew-{version()}.tar.gz"
    license_text = (ROOT / "LICENSE").read_bytes()
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=commit_time(), fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, data in (("kubectl-ddp", _PROGRAM.encode()), ("LICENSE", license_text), *_files(packages)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), commit_time(), 0o755 if name == "kubectl-ddp" else 0o644
            tar.addfile(entry, io.BytesIO(data))
    manifest = target / "ddp.yaml"
    manifest.write_text(json.dumps(krew_manifest(archive), indent=1) + "\n")
    return archive, manifest


def _files(packages: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(packages.rglob("*")):
        if path.is_file() and not path.name.endswith(_LEFT_OUT):
            yield f"packages/{path.relative_to(packages)}", path.read_bytes()


def krew_manifest(archive: Path) -> dict[str, object]:
    """Return the manifest of krew's index for the archive. JSON is YAML."""
    address = os.environ.get(URL, "https://example.com/kubectl-ddp/releases/download")
    platform = {
        "uri": f"{address}/v{version()}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": "kubectl-ddp",
    }
    selectors = ({"matchLabels": {"os": system, "arch": machine}} for system, machine in PLATFORMS)
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "ddp"},
        "spec": {
            "version": f"v{version()}",
            "homepage": address.removesuffix("/releases/download"),
            "shortDescription": "Fault-tolerant, elastic PyTorch training",
            "description": "Submit, watch, diagnose and resize PyTorch training jobs. Needs Python 3.11 or newer.",
            "platforms": [platform | {"selector": selector} for selector in selectors],
        },
    }


def check_archive(archive: Path, room: Path) -> None:
    """Unpack the archive, and run it with nothing else on the path and a home that cannot be written.

    Raises CannotRelease if it does not print its version, lacks the entry point of a command, or a dry run of a job
    makes no Job.
    """
    with tarfile.open(archive) as tar:
        tar.extractall(room, filter="data")
    (room / "train.py").write_text("print('trains')\n")
    calm = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    program = (sys.executable, "-I", room / "kubectl-ddp")
    if version() not in run_program(*program, "--version", environ=calm).split():
        raise CannotRelease(f"{archive.name} does not print the version {version()}.")
    run_program(*program, "report", "--help", environ=calm)
    if "job.batch/" not in run_program(*program, *_JOB, cwd=room, environ=calm):
        raise CannotRelease(f"{archive.name} prints no Job in a dry run of submit.")
