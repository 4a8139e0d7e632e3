"""CONTRIBUTING.md lists every file that one DDP step enters, and those that only some steps enter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

import ddp_trainer
from ddp_trainer.common.constants import Env, Exit
from tests.local.workloads import train_traced
from tests.local.workloads.train_group import WorkerGroup

DOCUMENT: Final = Path(__file__).parents[3] / "CONTRIBUTING.md"
PACKAGE: Final = Path(ddp_trainer.__file__).parent
AT_INTERVALS: Final = {"train/config/goodput_account.py"}
"""Listed files outside of the table that not every step enters."""
TASKS_OWN: Final = ("train/tasks/", "train/models/")


@pytest.fixture(scope="module")
def section() -> str:
    [found] = re.findall(r"^### The path of one DDP step\n(.*?)^#", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def names(text: str) -> set[str]:
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert len(named) == len(set(named))
    return {name if name.startswith("metrics/") else f"train/{name}" for name in named}


@pytest.fixture(scope="module")
def listed(section: str) -> set[str]:
    return names(section.partition("\nOther files")[0]) - AT_INTERVALS


@pytest.fixture(scope="module")
def occasional(section: str) -> set[str]:
    """Files that only some steps enter."""
    return names(section.partition("\nOther files")[2])


@pytest.fixture(scope="module", params=[0, 1], ids=lambda rank: f"rank {rank}")
def entered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Files that every traced step enters on one of two ranks, which report metrics."""
    folder = tmp_path_factory.mktemp("trace")
    program = ("-m", train_traced.__name__)
    flags = ["--task", f"{train_traced.__name__}:SingleDigits", "--max-steps", str(train_traced.TRACED_STEPS.stop + 1)]
    env = {"TRACE": str(folder), Env.METRICS_DIR: str(folder)}
    with WorkerGroup(2, flags, directory=folder, program=program, env=env) as group:
        assert group.finish() == [Exit.SUCCESS] * 2, group.stderr()
    found = json.loads((folder / f"{request.param}.json").read_text())
    return {name for name in found if not name.startswith(TASKS_OWN)}


def test_the_list_has_every_file_that_a_step_enters(listed: set[str], entered: set[str]) -> None:
    assert entered - listed == set()


def test_a_step_enters_every_file_of_the_list(listed: set[str], entered: set[str]) -> None:
    assert listed - entered == set()


def test_a_plain_step_enters_no_file_that_has_nothing_to_do(occasional: set[str], entered: set[str]) -> None:
    assert occasional & entered == set()
    assert all((PACKAGE / name).is_file() for name in occasional)


def test_fifteen_files_are_to_be_read(section: str) -> None:
    assert len(re.findall(r"^\d+\. ", section, re.MULTILINE)) == 15
