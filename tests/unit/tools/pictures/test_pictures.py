"""Pictures of the documentation: what a program of ours draws, and what lies in docs/assets."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.pictures import recording, terminal_svg
from tools.pictures.__main__ import shorten_window
from tools.pictures.recording import Recording
from tools.pictures.terminal_svg import Frame, terminal_animation, terminal_picture

ASSETS = Path(__file__).resolve().parents[4] / "docs" / "assets"
MOST_BYTES = 200_000
MOST_BYTES_IN_ALL = 600_000
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("module", [recording, terminal_svg], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_words_keep_their_columns_and_their_colours() -> None:
    picture = terminal_picture("t", ["RANK   STATE", "0      \x1b[1;31mdown\x1b[0m  <&>"], described="d")
    spans = ET.fromstring(picture).iter(f"{SVG}tspan")
    at = {each.text: each for each in spans}
    assert at["STATE"].get("x") == at["down"].get("x")
    assert "font-weight:bold" in (at["down"].get("style") or "")
    assert at["<&>"].get("style") is None


def test_an_animation_shows_each_frame_for_its_time_and_stands_still_for_those_who_ask() -> None:
    frames = [Frame(1.0, ("a", "b")), Frame(3.0, ("a", "c"), "killed")]
    picture = terminal_animation("t", frames, described="d")
    root = ET.fromstring(picture)
    assert "@keyframes k1{0%{visibility:hidden}25.000%{visibility:visible}}" in picture
    assert picture.count(">a</tspan>") == 1, "a line of two frames is drawn once"
    [still] = [each for each in root.iter(f"{SVG}g") if "still" in (each.get("class") or "")]
    assert still.get("id") == "f1"
    assert "prefers-reduced-motion" in picture


def test_screens_of_a_program_that_draws_in_place_are_told_apart() -> None:
    program = "for x in 'ab': print(f'\\x1b[H{x}\\x1b[K\\n\\x1b[J', end='', flush=True)"
    with Recording([sys.executable, "-c", program], {}, columns=80, rows=10) as recorded:
        assert recorded.wait() == 0
    assert [lines[0] for _, lines in recorded.screens()] == ["a", "b"]


def test_the_window_of_rates_is_as_short_as_the_run() -> None:
    assert shorten_window("rate(x[5m]) / rate(y[1h])") == "rate(x[30s]) / rate(y[1h])"


@pytest.mark.parametrize("path", sorted(ASSETS.glob("*.*[gp]")), ids=lambda path: path.name)
def test_a_picture_is_small_and_loads_nothing(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        ET.fromstring(text)
        assert not re.search(r"""(?:href|src)=["'](?!#)|@import|url\((?!#)""", text)


def test_all_pictures_together_are_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < MOST_BYTES_IN_ALL
