"""Contents of pyproject.toml, and paths of a release."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = ROOT / "locks"
CHARTS: Final = ROOT / "charts"
DIST: Final = ROOT / "dist"

NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@functools.cache
def pyproject() -> dict[str, Any]:
    """The whole file."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def version() -> str:
    """The release, as in ``0.1.0``."""
    found: str = pyproject()["project"]["version"]
    return found


def normalize_name(requirement: str) -> str:
    """The name in a requirement, as package indexes compare it: ``Prometheus_Client>=1`` is ``prometheus-client``."""
    found = NAME.match(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} begins with no package's name")
    return re.sub(r"[-_.]+", "-", found[0]).lower()
