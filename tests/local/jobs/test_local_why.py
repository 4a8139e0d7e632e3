"""``why`` and ``bundle`` on local jobs: the same answers, from the files of this machine."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.cli.group import root
from tests.support.local_place import Place, a_place, condition

ERROR = {"rank": 0, "message": "ValueError: the 7th layer has no name", "reason": "python_exception", "exit_code": 1}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path / "state") as found:
        yield found


def typed(place: Place, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(root(), [words[0], "--local", *words[1:]], env={"XDG_STATE_HOME": str(place.state)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout


def why(place: Place, name: str = "digits") -> Any:
    code, out = typed(place, "why", name, "-o", "json")
    told = json.loads(out)
    assert code == told["exitCode"]
    return told


def test_the_cause_of_a_local_job_is_named_from_its_start_to_its_end(place: Place, tmp_path: Path) -> None:
    message = json.dumps(ERROR)
    place.run(
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo '{message}' > \"$DDP_TERMINATION_LOG\"; exit 1",
        replicas=1,
        bounds=(1, 1),
    )
    place.until(condition("Running"))
    assert why(place)["cause"] == "running"
    place.suspend("digits", suspended=True)
    place.until(condition("Suspended"))
    assert (why(place)["cause"], why(place)["exitCode"]) == ("suspended", 12)
    place.suspend("digits", suspended=False)
    (tmp_path / "go").touch()
    place.until(condition("Failed"))
    told = why(place)
    assert (told["cause"], told["exitCode"]) == ("error", 10)
    assert "the 7th layer has no name" in told["findings"][0]["message"]
    assert "7th layer" in place.job("digits").job["metadata"]["annotations"][Annotation.FIRST_ERROR]

    path = tmp_path / "digits.tar.gz"
    assert typed(place, "bundle", "digits", "--file", str(path)) == (0, f"{path}\n")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"why.txt", "objects/job.json", "logs/digits-worker-0.log"} <= names
