"""Mistakes that users make: each is refused with the way out, or taken for what it means."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kubectl_ddp.cli.registry import DESTRUCTIVE
from tests.support.command_line import CommandLine
from tests.support.jobs import a_local_job
from tests.unit.kubectl_ddp.cli.test_cli_job_flags import rendered

JOB_FILE = "apiVersion: ddp.dev/v1\nkind: Job\nname: mine\nmodule: ddp_trainer\nargs: [train, --task, digits]\n"


@pytest.fixture(autouse=True)
def programs(workdir: Path) -> None:
    """Programs of all kinds beside the script."""
    for name, text in {
        "digits.ddp.yaml": JOB_FILE,
        "nb.ipynb": '{"cells": []}',
        "run.sh": "python train.py\n",
        "serve": "#!/usr/bin/env bash\npython train.py\n",
        "go": "#!/usr/bin/env python3\nprint('hello')\n",
    }.items():
        (workdir / name).write_text(text)


def test_a_yaml_file_in_the_place_of_a_script_is_a_job_file(cli: CommandLine) -> None:
    assert rendered(cli, "digits.ddp.yaml") == rendered(cli, "-f", "digits.ddp.yaml")
    assert "digits.ddp.yaml" in cli.refused("submit", "digits.ddp.yaml", "-f", "other.yaml")


@pytest.mark.parametrize("place", [["--local"], ["--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("code", [[], ["--code", "."]], ids=["alone", "with its directory"])
@pytest.mark.parametrize(
    ("script", "way_out"), [("nb.ipynb", "nbconvert"), ("run.sh", "--command"), ("serve", '--command "bash serve"')]
)
def test_what_is_no_python_is_not_run_as_python(
    cli: CommandLine, workdir: Path, script: str, way_out: str, place: list[str], code: list[str]
) -> None:
    report = cli.refused("submit", script, "--name", "mine", *place, *code)
    assert script in report
    assert way_out in report
    assert not (workdir / "state").exists()


@pytest.mark.parametrize("script", ["train.py", "go"])
def test_python_is_python_with_and_without_its_ending(cli: CommandLine, script: str) -> None:
    assert rendered(cli, script, "--name", "mine")["script"].endswith(script)


@pytest.mark.parametrize("flag", ["--nproc-per-node", "--nproc_per_node"])
@pytest.mark.parametrize("joined", [True, False])
def test_torchruns_spellings_are_ours(cli: CommandLine, flag: str, joined: bool) -> None:
    words = [f"{flag}=2"] if joined else [flag, "2"]
    found = rendered(cli, "train.py", "--name", "mine", *words, "--nnodes=1:2", "--max_restarts", "3")
    assert (found["nproc"], found["nnodes"], found["maxRestarts"]) == (2, "1:2", 3)


def test_words_of_the_program_keep_their_underscores(cli: CommandLine) -> None:
    found = rendered(cli, "train.py", "--name", "mine", "--env", "A_B=--x_y", "--", "--nproc_per_node=2")
    assert found["args"] == ["--nproc_per_node=2"]
    assert found["env"]["A_B"] == "--x_y"


@pytest.mark.parametrize("word", ["prun", "prunes", "delte", "deleted"])
def test_no_slip_of_the_finger_suggests_a_destructive_command(cli: CommandLine, word: str) -> None:
    report = cli.refused(word).partition(f"'{word}'")[2]
    assert not [command for command in DESTRUCTIVE if command in report]


@pytest.mark.parametrize(
    "words", [["trian.py"], ["sub/../trian.py"], ["-f", "digit.ddp.yaml"], ["trian.py", "--code", "."]], ids=" ".join
)
def test_a_misspelled_file_is_answered(cli: CommandLine, workdir: Path, words: list[str]) -> None:
    (workdir / "sub").mkdir()
    code = 2 if "--code" in words else 3
    report = cli.refused("submit", "--local", *words, codes=(code,))
    meant = "digits.ddp.yaml" if "-f" in words else "train.py"
    assert meant in report.partition("Did you mean")[2]


@pytest.mark.parametrize("command", [("render",), ("submit", "--dry-run=client")])
def test_a_job_of_more_annotations_than_a_cluster_stores_is_refused_before_anything_is_created(
    cli: CommandLine, workdir: Path, command: tuple[str, ...]
) -> None:
    variables = "".join(f"  LONG_{number}: {'x' * 3000}\n" for number in range(100))
    (workdir / "long.yaml").write_text(f"{JOB_FILE}env:\n{variables}")
    report = cli.refused(*command, "-q", "-f", "long.yaml")
    assert re.search(r"'mine' has 30\d,\d{3} bytes; a cluster stores at most 245,760", report)
    assert "--env-from" in report


def test_a_list_of_names_shows_those(cli: CommandLine) -> None:
    for name in ("digits", "images", "text"):
        a_local_job(name)
    listed = json.loads(cli("list", "images", "pytorchjob/text", "-o", "json").out)["items"]
    assert {item["name"] for item in listed} == {"images", "text"}
    output = cli("list", "images", "imagse", "-o", "name")
    assert output.out.split() == ["pytorchjob.kubeflow.org/images"]
    assert "imagse" in output.err
