"""Mistakes that users make: each is refused with the way out, or taken for what it means."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.cli.registry import DESTRUCTIVE
from kubectl_ddp.cli.run import run
from kubectl_ddp.render import render
from tests.support.jobs import a_job

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


def rendered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The job that a command line means."""
    code = run(["render", "-o", "json", *words])
    output = capsys.readouterr()
    assert code == 0, output.err
    document: dict[str, Any] = json.loads(
        json.loads(output.out)["items"][0]["metadata"]["annotations"][Annotation.SPEC]
    )
    return document


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one sentence with which a command line is refused."""
    assert run([*words]) == code
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def test_a_yaml_file_in_the_place_of_a_script_is_a_job_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert rendered(capsys, "digits.ddp.yaml") == rendered(capsys, "-f", "digits.ddp.yaml")
    assert "digits.ddp.yaml" in refused(capsys, "submit", "digits.ddp.yaml", "-f", "other.yaml")


@pytest.mark.parametrize("place", [["--local"], ["--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("code", [[], ["--code", "."]], ids=["alone", "with its directory"])
@pytest.mark.parametrize(
    ("script", "way_out"), [("nb.ipynb", "nbconvert"), ("run.sh", "--command"), ("serve", '--command "bash serve"')]
)
def test_what_is_no_python_is_not_run_as_python(
    capsys: pytest.CaptureFixture[str], workdir: Path, script: str, way_out: str, place: list[str], code: list[str]
) -> None:
    report = refused(capsys, "submit", script, "--name", "mine", *place, *code)
    assert script in report
    assert way_out in report
    assert not (workdir / "state").exists()


@pytest.mark.parametrize("script", ["train.py", "go"])
def test_python_is_python_with_and_without_its_ending(capsys: pytest.CaptureFixture[str], script: str) -> None:
    assert rendered(capsys, script, "--name", "mine")["script"].endswith(script)


MISTAKES: Final = {
    "trian.py --local": "Did you mean 'train.py'?",
    "train.sh --local": "Did you mean 'train.py'?",
    ". --local": "Name the file in it",
    "./missing/train.py --local": "--command",
    "--local": "Name a script",
    "-- python train.py": "script before any '--'",
    "train.py foo bar": "train.py -- foo bar",
    "train.py --epochs 3 --local": "-- --epochs",
    "train.py --log-dir logs --local": "-- --log-dir",
    "train.py --checkpoint-dir ./ck --local": "argument after '--'",
    "--module train.py": "script",
    "--command 'torchrun --nproc_per_node 2'": "script",
    "--command 'accelerate launch --config_file a.yaml train.py'": "nproc",
    "--module torch.distributed.run": "nproc",
    "torchrun --nproc_per_node=2 train.py --epochs 3": "submit train.py",
    "--name mine torchrun": "train.py",
    "accelerate launch train.py": "submit train.py",
    "python train.py": "submit train.py",
    "train.py --local --standalone": "Leave it out",
    "train.py --local --nproc gpu --dry-run": "Give the number of processes",
    "train.py --local --nnodes 4:2": "'2:4'",
    "train.py --local --nnodes 2-4": "'2:8'",
    "train.py --memory 8GB": "'4Gi'",
    "train.py --shm 16": "16Gi",
    "train.py --deadline 1hour": "'1h'",
    "train.py --gpus A100:8": "--gpu-type",
    "train.py --gpu-type A100 --dry-run": "Add gpus",
    "train.py -e FOO": "NAME=VALUE",
    "train.py --timeout 1h --local": "Add --wait or --follow",
    "train.py --detach --local": "continues",
    "train.py --walltime 1h": "'--deadline'",
    "train.py --num-nodes 2": "'--nnodes'",
    "train.py --gpus_per_node 2": "'--gpus'",
    "train.py --memmory 2Gi": "'--memory'",
    "train.py --pvc data": "'--mount'",
    "train.py --master_addr a": "rendezvous",
}
"""Words after ``submit`` → part of what answers them."""


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_in_one_sentence_with_the_right_way(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", *shlex.split(line)]) in {2, 3}
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert MISTAKES[line] in output.err.partition(": ")[2]


@pytest.mark.parametrize("flag", ["--nproc-per-node", "--nproc_per_node"])
@pytest.mark.parametrize("joined", [True, False])
def test_torchruns_spellings_are_ours(capsys: pytest.CaptureFixture[str], flag: str, joined: bool) -> None:
    words = [f"{flag}=2"] if joined else [flag, "2"]
    found = rendered(capsys, "train.py", "--name", "mine", *words, "--nnodes=1:2", "--max_restarts", "3")
    assert (found["nproc"], found["nnodes"], found["maxRestarts"]) == (2, "1:2", 3)


def test_words_of_the_program_keep_their_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    found = rendered(capsys, "train.py", "--name", "mine", "--env", "A_B=--x_y", "--", "--nproc_per_node=2")
    assert found["args"] == ["--nproc_per_node=2"]
    assert found["env"]["A_B"] == "--x_y"


@pytest.mark.parametrize("word", ["prun", "prunes", "delte", "deleted"])
def test_no_slip_of_the_finger_suggests_a_command_that_destroys_something(
    capsys: pytest.CaptureFixture[str], word: str
) -> None:
    report = refused(capsys, word).partition(f"'{word}'")[2]
    assert not [command for command in DESTRUCTIVE if command in report]


@pytest.mark.parametrize(
    "words",
    [["trian.py"], ["sub/../trian.py"], ["-f", "digit.ddp.yaml"], ["trian.py", "--code", "."]],
    ids=" ".join,
)
def test_a_misspelled_file_is_answered_with_the_one_beside_it(
    capsys: pytest.CaptureFixture[str], workdir: Path, words: list[str]
) -> None:
    (workdir / "sub").mkdir()
    code = 2 if "--code" in words else 3
    report = refused(capsys, "submit", "--local", *words, code=code)
    meant = "digits.ddp.yaml" if "-f" in words else "train.py"
    assert meant in report.partition("Did you mean")[2]


@pytest.mark.parametrize("command", [("render",), ("submit", "--dry-run=client")])
def test_a_job_of_more_annotations_than_a_cluster_stores_is_refused_before_anything_is_created(
    capsys: pytest.CaptureFixture[str], workdir: Path, command: tuple[str, ...]
) -> None:
    variables = "".join(f"  LONG_{number}: {'x' * 3000}\n" for number in range(100))
    (workdir / "long.yaml").write_text(f"{JOB_FILE}env:\n{variables}")
    report = refused(capsys, *command, "-f", "long.yaml")
    assert re.search(r"'mine' has 30\d,\d{3} bytes; a cluster stores at most 245,760", report)
    assert "--env-from" in report


def some_jobs(*names: str) -> None:
    """Jobs of this machine whose engines have never started."""
    for name in names:
        directory = local_jobs_directory() / name
        directory.mkdir(parents=True)
        (directory / "objects.json").write_text(json.dumps(render(a_job(name=name), "run1")))


def test_a_list_of_names_shows_those(capsys: pytest.CaptureFixture[str]) -> None:
    some_jobs("digits", "images", "text")
    assert run(["list", "images", "pytorchjob/text", "-o", "json"]) == 0
    assert {item["name"] for item in json.loads(capsys.readouterr().out)["items"]} == {"images", "text"}
    assert run(["list", "images", "imagse", "-o", "name"]) == 0
    output = capsys.readouterr()
    assert output.out.split() == ["pytorchjob.kubeflow.org/images"]
    assert "imagse" in output.err
