"""What an address or endpoint is, by its text."""

from __future__ import annotations

import pytest

from ddp_trainer.net.addresses import is_address, is_local_address


@pytest.mark.parametrize(
    ("text", "expected"), [("10.0.0.1", True), ("fe80::1%eth0", True), ("worker-0", False), ("", False)]
)
def test_an_address_needs_no_resolver(text: str, expected: bool) -> None:
    assert is_address(text) is expected


@pytest.mark.parametrize(("address", "is_local"), [("127.0.0.9", True), ("::1", True), ("192.0.2.1", False)])
def test_an_own_address_can_be_bound_to(address: str, is_local: bool) -> None:
    assert is_local_address(address) is is_local
