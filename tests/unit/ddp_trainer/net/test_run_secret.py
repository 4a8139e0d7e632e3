"""The secret of a run: which files hold one, and that it is never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddp_trainer.net.run_secret import BadSecret, RunSecret, read_run_secret

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


KEY = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ
-----END OPENSSH PRIVATE KEY-----
"""


def test_a_secret_is_derived_from_a_private_key_which_nodes_with_one_home_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = secret_file(tmp_path, KEY)
    first, again = read_run_secret(path, "run-7"), read_run_secret("~/secret", "run-8")
    assert first.key("rendezvous") == again.key("rendezvous")
    other = read_run_secret(secret_file(tmp_path, KEY.replace("b3Bl", "c3Bl")))
    assert other.key("rendezvous") != first.key("rendezvous")
    with pytest.raises(BadSecret, match="at least 32"):
        read_run_secret(secret_file(tmp_path, KEY.replace("PRIVATE", "PUBLIC")))


def test_each_purpose_and_each_secret_has_a_key_of_its_own() -> None:
    one, other = RunSecret.random(), RunSecret.random()
    keys = {one.key("rendezvous"), one.key("preflight"), other.key("rendezvous"), other.key("preflight")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


def test_its_representation_does_not_show_it(tmp_path: Path) -> None:
    secret = read_run_secret(secret_file(tmp_path, HEX))
    assert HEX not in repr(secret)
    assert secret.key("x").hex() not in repr(secret)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "is empty"),
        ("  \n", 0o600, "is empty"),
        (HEX, 0o604, "is open to other users"),
        (HEX, 0o602, "is open to other users"),
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
