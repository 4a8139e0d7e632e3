"""SBOMs in CycloneDX: of the installed command line, and of the locked Python packages of the images.

Debian's packages are missing: those of the images' base follow from the digest that ``PYTHON_IMAGE`` names, and
those that the target ``cuda`` adds stand in the Dockerfile by name, in the version of the day of the build.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tools.release.errors import run_program
from tools.release.project import LOCKS, ROOT, version

IMAGES: Final = {"cpu": ("torch-cpu", "trainer"), "cuda": ("torch-cuda", "trainer")}
"""Target of the Dockerfile, then the locks that it installs."""
HOW: Final = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--spec-version", "1.6")


def of_the_installed(cyclonedx: Path, python: Path, target: Path) -> Path:
    """The wheel and all that came with it, each with its licence and what it depends on."""
    path = target / f"kubectl_ddp-{version()}.cdx.json"
    run_program(cyclonedx, "environment", *HOW, "--output-file", path, python)
    return path


def of_the_images(cyclonedx: Path, target: Path) -> list[Path]:
    """The Python packages of each image, with the digests that the image was built with."""
    made = []
    for image, locks in IMAGES.items():
        path = target / f"ddp-trainer-{image}-{version()}.cdx.json"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as both:
            both.write("\n".join((LOCKS / f"{lock}.txt").read_text() for lock in locks))
            both.flush()
            run_program(cyclonedx, "requirements", *HOW, "--output-file", path, both.name)
        made.append(path)
    return made
