"""``kubectl ddp explain``."""

from __future__ import annotations

import json

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.spec.fields import job_schema
from tests.support.command_line import CommandLine


def test_a_key_is_described(cli: CommandLine) -> None:
    assert cli("explain", "grace").out == (
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
def test_flag_default_and_choices_are_those_of_the_key(key: str, line: str, cli: CommandLine) -> None:
    assert line in cli("explain", key).out.splitlines()


def test_json_is_the_schema(cli: CommandLine) -> None:
    assert json.loads(cli("explain", "-o", "json").out) == job_schema()
    of_gpus = json.loads(cli("explain", "gpus", "-o", "json").out)
    assert of_gpus == job_schema()["properties"]["spec"]["properties"]["gpus"]


@pytest.mark.parametrize(
    ("key", "hint"), [("nodes", "Did you mean 'nnodes'?"), ("qqqq", "'kubectl ddp explain' lists the keys.")]
)
def test_an_unknown_key_is_one_sentence(key: str, hint: str, cli: CommandLine) -> None:
    assert cli.refused("explain", key) == f"error: A job has no key '{key}'. {hint}\n"
