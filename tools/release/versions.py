"""Every place where the version of a release stands, and whether they agree."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.release.errors import run_program
from tools.release.project import ROOT, version


@dataclass(frozen=True)
class Place:
    """A pattern whose first group is the version, and how often it stands in a file."""

    path: str
    pattern: str
    count: int = 1


PLACES = (
    Place("Dockerfile", r'image\.version="([^"]+)"', count=2),
    Place("Dockerfile", r"--tag ddp-trainer:(\S+?)(?:-cuda)? \.$", count=2),
    Place("manifests/components/gpu/values.yaml", r"ddp-trainer:(\S+?)-cuda"),
    Place("README.md", r"/badge/version-([^-]+)-"),
    Place("CHANGELOG.md", r"\A(?s:.*?)^## (\S+) - "),
)
"""Beside pyproject.toml, which is the source, and the charts."""
CHART = (r"^version: ['\"]?([^'\"\s]+)", r"^appVersion: ['\"]?([^'\"\s]+)")


def find_version_mismatches(root: Path = ROOT, wanted: str | None = None) -> Iterator[str]:
    """A sentence for each place that names another version than pyproject.toml, or none."""
    wanted = wanted or version()
    charts = [
        Place(str(path.relative_to(root)), pattern) for path in root.glob("charts/*/Chart.yaml") for pattern in CHART
    ]
    for place in (*PLACES, *charts):
        found = re.findall(place.pattern, (root / place.path).read_text(encoding="utf-8"), re.MULTILINE)
        if len(found) < place.count:
            yield f"{place.path} names no version where {place.pattern!r} is looked for; write {wanted} there."
        for number in found:
            if number != wanted:
                yield f"{place.path} says {number}, and pyproject.toml {wanted}; make them agree."


def check_image_digest(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence if the commit carries a release's tag and no digest names the base of its images."""
    base = os.environ.get("PYTHON_IMAGE", "")
    if _tags(root) and not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", base):
        yield (
            f"The commit is tagged as a release, and PYTHON_IMAGE is '{base}', which no digest names; run "
            "make release-check PYTHON_IMAGE=python:3.11-slim@sha256:DIGEST, and build the images with the same."
        )


def _tags(root: Path) -> list[str]:
    """Return the tags of the commit that name a version."""
    return [tag for tag in run_program("git", "tag", "--points-at", "HEAD", cwd=root).split() if tag.startswith("v")]


def check_release_tag(root: Path = ROOT) -> Iterator[str]:
    """A sentence where the commit carries a release's tag that is not this version, or whose changes have no date."""
    tags = _tags(root)
    for tag in tags:
        if tag != f"v{version()}":
            yield f"The commit is tagged {tag}, and pyproject.toml says {version()}; make them agree."
    heading = f"## {version()} - "
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if tags and not re.search(rf"^{re.escape(heading)}\d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"The commit is tagged as a release, and CHANGELOG.md has no date; write '{heading}YEAR-MONTH-DAY'."
