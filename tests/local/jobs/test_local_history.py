"""A job that was deleted or replaced stays in the history, and two runs can be compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.local_place import Typed, a_place

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
        impossible = typed(*submit, "--replace", "--gpus", "1", "--", "0.75", "600")
        assert impossible.returncode != 0
        assert typed("status", "run", "-o", "jsonpath={.state}").stdout == "Succeeded"
        assert typed(*submit, "--replace", "--", "0.75", "600").returncode == 0
        assert typed("wait", "run", "--for=running", "--timeout", "100s").returncode == 0
        assert typed("delete", "run", "--yes").returncode == 0
        newest, oldest = json.loads(typed("history", "-o", "json").stdout)["items"]
        assert (newest["state"], oldest["state"]) == ("Deleted", "Succeeded")
        assert typed("history", "--no-headers").stdout.count(f"{script} 0.") == 2
        compared = typed("report", newest["run"], oldest["run"][:6])
        assert compared.returncode == 0
        assert ["args", "0.75", "600", "0.25", "0"] in [line.split() for line in compared.stdout.splitlines()]
        missing = typed("report", "run", "absent")
        assert missing.returncode == 3
        assert "No job 'absent' was submitted from this machine." in missing.stderr


def test_jobs_of_the_client_are_in_the_history_and_notebooks_show_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with a_place(tmp_path / "state") as place:
        typed = Typed(place)
        program = f"""
from kubectl_ddp import Client
client = Client(local=True)
seen = []
job = client.submit({str(script)!r}, name="run", nproc=1, args=["0.25", "0"])
job.wait(timeout=100, progress=seen.append)
print(seen[-1].state, "<td>run</td>" in job._repr_html_(), client.list()._repr_html_().count("<td>run</td>"))
job.delete(wait=True, timeout=60)
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], env=typed.environ, capture_output=True, text=True, timeout=200, check=False
        )
        assert ended.stdout.split() == ["Succeeded", "True", "1"], ended.stderr
        [record] = json.loads(typed("history", "-o", "json").stdout)["items"]
        assert (record["name"], record["state"]) == ("run", "Succeeded")
        assert record["settings"]["args"] == ["0.25", "0"]
        assert typed("history", "-o", "wide").stdout.splitlines()[0].split()[-3:] == [
            "NAMESPACE",
            "PROCESSES",
            "VALUES",
        ]
