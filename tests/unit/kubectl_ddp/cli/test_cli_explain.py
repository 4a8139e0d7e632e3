"""``kubectl ddp explain``."""

from __future__ import annotations

import json

import pytest

from kubectl_ddp.cli.run import run
from kubectl_ddp.engines import Engine
from kubectl_ddp.spec.fields import job_schema


def test_a_key_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "grace"]) == 0
    assert capsys.readouterr().out == (
        "grace: Time from SIGTERM to SIGKILL, to finish a step and save.\n\n"
        "Type:     text  TIME\n"
        "Default:  30s\n"
        "Flag:     --grace\n"
        "Example:  grace: 2m\n"
    )


@pytest.mark.parametrize(("key", "line"), [
    ("tolerations", "Flag:     --toleration"),
    ("script", "Argument: SCRIPT"),
    ("args", "Argument: ARGS (after --)"),
    ("nproc", "Default:  from gpus, or 1"),
    ("ttl", "Default:  none"),
    ("engine", f"Type:     choice  {'|'.join(Engine)}"),
])  # fmt: skip
def test_flag_default_and_choices_are_those_of_the_key(key: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", key]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_json_is_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == job_schema()
    assert run(["explain", "gpus", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == job_schema()["properties"]["spec"]["properties"]["gpus"]


@pytest.mark.parametrize(
    ("key", "hint"), [("nodes", "Did you mean 'nnodes'?"), ("qqqq", "'kubectl ddp explain' lists the keys.")]
)
def test_an_unknown_key_is_one_sentence(key: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", key]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"error: A job has no key '{key}'. {hint}\n")
