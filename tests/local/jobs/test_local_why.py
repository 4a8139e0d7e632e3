"""``why`` and ``bundle`` on local jobs: the same answers, from the files of this machine."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from ddp_trainer.common.constants import Annotation
from tests.support.local_place import Place, Typed, condition

ERROR = {"rank": 0, "message": "ValueError: the 7th layer has no name", "reason": "python_exception", "exit_code": 1}


def test_the_cause_of_a_local_job_is_named_from_its_start_to_its_end(
    place: Place, typed: Typed, tmp_path: Path
) -> None:
    def why() -> Any:
        done = typed("why", "digits", "-o", "json")
        document = json.loads(done.stdout)
        assert done.returncode == document["exitCode"]
        return document

    message = json.dumps(ERROR)
    place.run(
        "echo password=correct-horse; "
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo '{message}' > \"$DDP_TERMINATION_LOG\"; exit 1",
        replicas=1,
        bounds=(1, 1),
        container={"env": [{"name": "NCCL_DEBUG", "value": "kept"}, {"name": "NOTE", "value": "hidden-value"}]},
    )
    place.until(condition("Running"))
    assert why()["cause"] == "running"
    place.suspend("digits", suspended=True)
    place.until(condition("Suspended"))
    assert (why()["cause"], why()["exitCode"]) == ("suspended", 12)
    place.suspend("digits", suspended=False)
    (tmp_path / "go").touch()
    place.until(condition("Failed"))
    report = why()
    assert (report["cause"], report["exitCode"]) == ("error", 10)
    assert "the 7th layer has no name" in report["findings"][0]["message"]
    assert "7th layer" in place.job("digits").job["metadata"]["annotations"][Annotation.FIRST_ERROR]

    path = tmp_path / "digits.tar.gz"
    assert typed("bundle", "digits", "--file", str(path)).stdout == f"{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert {"why.txt", "status.txt", "status.json", "versions.json", "events.json"} <= files.keys()
    assert {"objects/job.json", "objects/pods/digits-worker-0.json", "logs/digits-worker-0.log"} <= files.keys()
    assert json.loads(files["why.json"])["cause"] == "error"
    everything = "\n".join(files.values())
    assert "correct-horse" not in everything
    assert "hidden-value" not in everything, "its name is not one that is known to be harmless"
    assert "kept" in everything
