"""Addresses by their text, and those of this machine."""

from __future__ import annotations

import pytest

from ddp_trainer.net.addresses import is_address


@pytest.mark.parametrize(
    ("text", "expected"), [("10.0.0.1", True), ("fe80::1%eth0", True), ("worker-0", False), ("", False)]
)
def test_an_address_needs_no_resolver(text: str, expected: bool) -> None:
    assert is_address(text) is expected
