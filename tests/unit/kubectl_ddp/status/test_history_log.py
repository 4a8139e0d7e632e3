"""Histories in logs, those that are none among them."""

from __future__ import annotations

import base64
import zlib

import pytest

from ddp_trainer.common.constants import HISTORY_MARK
from kubectl_ddp.status.metrics_parser import MOST_BYTES, unpacked


def packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


def test_parts_are_put_together_and_the_last_whole_one_counts() -> None:
    first, second = packed(b"first"), packed(b"second")
    halves = [f"{HISTORY_MARK}1/2 {second[:5]}", "a word between", f"{HISTORY_MARK}2/2 {second[5:]}"]
    assert unpacked([f"{HISTORY_MARK}1/1 {first}", *halves, f"{HISTORY_MARK}1/3 {first}"]) == "second"


@pytest.mark.parametrize(
    "line",
    [
        *("", HISTORY_MARK, f"{HISTORY_MARK}1/1 ====", f"{HISTORY_MARK}1/1 {packed(b'cut')[:-6]}"),
        *(f"{HISTORY_MARK}2/2 {packed(b'no beginning')}", f"{HISTORY_MARK}1/1 {packed(bytes([0xFF]))}"),
    ],
)
def test_what_is_no_history_is_none(line: str) -> None:
    assert unpacked([line]) is None


def test_what_would_fill_the_memory_is_not_unpacked() -> None:
    assert unpacked([f"{HISTORY_MARK}1/1 {packed(bytes(MOST_BYTES + 1))}"]) is None
