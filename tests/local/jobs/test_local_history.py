"""A job that was deleted or replaced stays in the history, and two runs can be compared."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.jobs.test_local_commands import Typed
from tests.support.local_place import a_place

SCRIPT = """\
import sys, time
from ddp_trainer.metrics import attach
attach.log(loss=float(sys.argv[1]))
time.sleep(float(sys.argv[2]))
"""


def test_a_replaced_and_a_deleted_job_stay_in_the_history(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with a_place(tmp_path / "state") as place:
        typed = Typed(place)
        submit = ("submit", str(script), "--local", "--name", "run", "-j", "1x1")
        assert typed(*submit, "--wait", "--timeout", "100s", "--", "0.25", "0").returncode == 0
        refused = typed(*submit, "--", "0.75", "600")
        assert refused.returncode != 0
        planned = typed(*submit, "--replace", "--dry-run=client", "-o", "name", "--", "0.75", "600")
        assert "Job run would be deleted on this machine first." in planned.stderr
        assert typed("status", "run", "-o", "jsonpath={.state}").stdout == "Succeeded"
        assert typed(*submit, "--replace", "--", "0.75", "600").returncode == 0
        assert typed("wait", "run", "--for=running", "--timeout", "100s").returncode == 0
        assert typed("delete", "run", "--yes").returncode == 0
        newest, oldest = json.loads(typed("history", "-o", "json").stdout)["items"]
        assert (newest["state"], oldest["state"]) == ("Deleted", "Succeeded")
        assert typed("history", "--no-headers").stdout.count(f"{script} 0.") == 2
        compared = typed("report", newest["uid"][:8], oldest["uid"][:8])
        assert compared.returncode == 0
        assert ["args", "0.75", "600", "0.25", "0"] in [line.split() for line in compared.stdout.splitlines()]
        missing = typed("report", "run", "absent")
        assert missing.returncode == 3
        assert "No job 'absent' was submitted from this machine." in missing.stderr
