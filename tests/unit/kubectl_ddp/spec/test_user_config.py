"""The person's own defaults: what the file may say, and what becomes of it when it is changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.spec.external_values import config_file, defaults_of, read, write
from kubectl_ddp.spec.job_key import Given, Origin, OriginKind
from kubectl_ddp.spec.resolve import DefaultingContext, resolve


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kubectl-ddp" / "config.yaml"


def test_the_file_lies_where_xdg_says(tmp_path: Path) -> None:
    assert config_file({"HOME": "/home/me"}) == Path("/home/me/.config/kubectl-ddp/config.yaml")
    assert config_file({"HOME": "/home/me", "XDG_CONFIG_HOME": str(tmp_path)}).parent.parent == tmp_path
    assert read(config_file({"HOME": str(tmp_path)})) == {}


@pytest.mark.parametrize(("key", "value", "raw"), [
    ("image", "example.com/team/x:1.4", "example.com/team/x:1.4"),
    ("env.A", "no: {braces} # 'quotes'", "no: {braces} # 'quotes'"),
    ("env.B", "", ""),
    ("nnodes", "1:2", "1:2"),
    ("env.C", "yes", "yes"),
    ("tolerations", "[dedicated=ml:NoSchedule, spot]", ["dedicated=ml:NoSchedule", "spot"]),
])  # fmt: skip
def test_what_is_set_is_read_back_as_it_was(file: Path, key: str, value: str, raw: object) -> None:
    write(file, key, value)
    assert {name: given.raw for name, given in read(file).items()} == {key: raw}


def test_setting_and_unsetting_leaves_other_lines_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("# ours\nqueue: team   # the big one\nimage: a:1\n")
    write(file, "image", "b:2")
    write(file, "env.X", "1")
    write(file, "env.X", None)
    assert file.read_text() == "# ours\nqueue: team   # the big one\nimage: b:2\n"


def test_defaults_stand_below_what_is_said_and_above_presets(file: Path) -> None:
    write(file, "grace", "77s")
    write(file, "image", "mine:1")
    environ = {"XDG_CONFIG_HOME": str(file.parent.parent), "HOME": "/nowhere"}
    text = {"module": Given("m", Origin(OriginKind.FLAG, "--module"))}
    found = resolve([defaults_of(environ), text], DefaultingContext(image="built-in:1"))
    assert (found.spec.grace_seconds, found.spec.image) == (77, "mine:1")
    assert str(found.origins["grace"]) == f"{file} line 1"
    named = resolve(
        [defaults_of(environ), text | {"grace": Given("5s", Origin(OriginKind.FLAG, "-"))}], DefaultingContext("x:1")
    )
    assert named.spec.grace_seconds == 5
    assert "image" not in defaults_of(environ | {"KUBECTL_DDP_IMAGE": "other:1"})


@pytest.mark.parametrize(("text", "sentence"), [
    ("name: x", "line 1: 'name' identifies one job"),
    ("quueue: x", "line 1: 'quueue' is not a key of a job. Did you mean 'queue'?"),
    ("env: x", "'env' takes no such value"),
    ("- a", "holds no keys"),
    ("a: [", "is not valid YAML"),
    ("a: \x00", "holds no keys"),
    pytest.param("a: " + "[" * 5000 + "]" * 5000, "holds no keys", id="brackets"),
    ("image:\n  b: c", "line 1 has no plain value"),
    ("image:", "line 1 has no plain value"),
])  # fmt: skip
def test_what_makes_no_sense_is_one_sentence_with_its_line(file: Path, text: str, sentence: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        read(file)


def test_a_value_that_cannot_be_meant_is_not_written(file: Path) -> None:
    with pytest.raises(UsageError, match="grace: '1x' is not a duration"):
        write(file, "grace", "1x")
    assert not file.exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(DdpError, match="cannot be written"):
        write(tmp_path / "taken" / "config.yaml", "queue", "team")
