"""Mutual proof of the run's secret, and the file that holds it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ddp_trainer.net.handshake import ClientHandshake, HandshakeError, ServerHandshake, WrongSecret
from ddp_trainer.net.run_secret import BadSecret, RunSecret, read_run_secret

KEY, OTHER = RunSecret.random().key("test"), RunSecret.random().key("test")
VERSION = 5


def test_each_side_finds_out_that_the_other_has_another_secret() -> None:
    client, server = ClientHandshake(KEY, VERSION), ServerHandshake(OTHER, VERSION)
    with pytest.raises(WrongSecret):
        client.respond(server.make_challenge(client.first_message))
    impostor, honest = ClientHandshake(OTHER, VERSION), ServerHandshake(KEY, VERSION)
    challenge = json.loads(honest.make_challenge(impostor.first_message))
    with pytest.raises(WrongSecret):
        honest.verify(json.dumps({"is": "proof", "proof": challenge["proof"]}).encode())  # the server's own, reflected


def test_a_proof_of_one_connection_is_worth_nothing_on_another() -> None:
    client, server = ClientHandshake(KEY, VERSION), ServerHandshake(KEY, VERSION)
    proof = client.respond(server.make_challenge(client.first_message))
    again = ServerHandshake(KEY, VERSION)
    again.make_challenge(client.first_message)
    with pytest.raises(WrongSecret):
        again.verify(proof)


def test_another_version_is_refused_before_any_proof() -> None:
    with pytest.raises(HandshakeError, match="version 4"):
        ServerHandshake(KEY, VERSION).make_challenge(ClientHandshake(KEY, 4).first_message)


@given(st.binary(max_size=300) | st.from_regex(rb'\{"is":"(knock|proof|challenge)","[a-z]+":"?[0-9a-f]*"?\}\n'))
def test_whatever_else_is_sent_does_not_pass(line: bytes) -> None:
    for side in (ServerHandshake(KEY, VERSION).make_challenge, ClientHandshake(KEY, VERSION).respond):
        with pytest.raises(HandshakeError):
            side(line)
    server = ServerHandshake(KEY, VERSION)
    server.make_challenge(ClientHandshake(KEY, VERSION).first_message)
    with pytest.raises(HandshakeError):
        server.verify(line)


HEX = "0123456789abcdef" * 4


def secret_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_holds_the_digits_alone_or_behind_the_run_id(tmp_path: Path) -> None:
    alone = read_run_secret(secret_file(tmp_path, f"{HEX}\n"), "run-7")
    with_id = read_run_secret(secret_file(tmp_path, f"run-7:{HEX}\n", 0o440), "run-7")
    assert alone.key("rendezvous") == with_id.key("rendezvous")
    assert HEX not in repr(alone)


SSH_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n"


def test_nodes_with_one_home_derive_a_secret_from_its_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    first, again = read_run_secret(secret_file(tmp_path, SSH_KEY), "run-7"), read_run_secret("~/secret", "run-8")
    assert first.key("rendezvous") == again.key("rendezvous")
    other = read_run_secret(secret_file(tmp_path, SSH_KEY.replace("b3Bl", "c3Bl")))
    assert other.key("rendezvous") != first.key("rendezvous")
    with pytest.raises(BadSecret, match="at least 32"):
        read_run_secret(secret_file(tmp_path, SSH_KEY.replace("PRIVATE", "PUBLIC")))


def test_each_purpose_and_each_secret_has_a_key_of_its_own() -> None:
    one, other = RunSecret.random(), RunSecret.random()
    keys = {one.key("rendezvous"), one.key("preflight"), other.key("rendezvous"), other.key("preflight")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "is empty"),
        (HEX, 0o604, "is open to other users"),
        (f"run-6:{HEX}", 0o600, "is of another run"),
        ("short", 0o600, "at least 32"),
        (f"{HEX} {HEX}", 0o600, "at least 32"),
        ("\xe9" * 64, 0o600, "at least 32"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, mode: int, why: str) -> None:
    path = secret_file(tmp_path, text, mode)
    with pytest.raises(BadSecret, match=why) as raised:
        read_run_secret(path, "run-7")
    assert path in str(raised.value)
    assert HEX not in str(raised.value)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (str(tmp_path / "missing"), str(tmp_path), str(pipe)):
        with pytest.raises(BadSecret, match=r"cannot be read|not a regular file"):
            read_run_secret(path)
