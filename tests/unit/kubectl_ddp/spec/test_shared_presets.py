"""Presets that others of the namespace may write are not trusted."""

from __future__ import annotations

import time

import pytest

from kubectl_ddp.spec.external_values import _parse_preset, _parse_yaml

PAIRS = zip("abcdefgh", "bcdefghi", strict=True)
NESTED = "".join(f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in PAIRS)


def test_aliases_are_refused_before_they_are_followed() -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="aliases"):
        _parse_yaml(f"a: &a [x]\n{NESTED}settings: {{}}\nsummary: *i\n")
    assert time.process_time() - begun < 1.0


def test_brackets_without_an_end_of_nesting_are_one_error() -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="nested too deeply"):
        _parse_yaml("settings: " + "[" * 50_000)
    assert time.process_time() - begun < 1.0


def test_what_should_be_text_is_text() -> None:
    with pytest.raises(TypeError, match="'summary' is not a string"):
        _parse_preset("fast", _parse_yaml("settings: {}\nsummary: [a, b]\n"))
    with pytest.raises(TypeError, match="'reason' is not a string"):
        _parse_preset("fast", _parse_yaml("settings: {nproc: {value: 2, reason: {a: 1}}}\n"))
    assert _parse_preset("fast", _parse_yaml("settings: {nproc: {value: 2}}\nsummary: Quick\n")).summary == "Quick"
