"""Pictures of the documentation: what a program of ours draws, and what lies in docs/assets."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ASSETS = Path(__file__).resolve().parents[4] / "docs" / "assets"
MOST_BYTES = 200_000
MOST_BYTES_IN_ALL = 600_000


@pytest.mark.parametrize("path", sorted(ASSETS.glob("*.*[gp]")), ids=lambda path: path.name)
def test_a_picture_is_small_and_loads_nothing(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        ET.fromstring(text)
        assert not re.search(r"""(?:href|src)=["'](?!#)|@import|url\((?!#)""", text)


def test_all_pictures_together_are_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < MOST_BYTES_IN_ALL
