"""Errors of a lost peer, and their reason in one clause."""

from __future__ import annotations

import pytest

from ddp_trainer.train.distributed.collective_errors import is_network, reason


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("[/a/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. This is", True),
        ("Timed out waiting 1000ms for recv operation to complete", True),
        ("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x32)", False),
        ("expected scalar type Float but found Double", False),
    ],
)
def test_a_lost_peer_is_told_from_a_bug_by_its_words(text: str, network: bool) -> None:
    assert is_network(RuntimeError(text)) is network


def test_a_reason_is_one_clause() -> None:
    assert reason("[/a/pair.cc:1] Connection closed by peer [10.0.0.1]:9. This is typically caused by\nmore") == (
        "Connection closed by peer [10.0.0.1]:9"
    )
    assert reason("") == "no reason was given"
