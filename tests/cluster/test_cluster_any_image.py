"""Jobs in images that do not hold the launcher: it is mounted from the runtime image, or copied."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.cluster.live_cluster import Namespace

BASE_PYTHON: Final = "/usr/local/bin/python3"
"""Interpreter of the trainer image without torch and our package, which stands for another image's."""
SCRIPT: Final = """
import importlib.util, json, os, sys, time, urllib.request
import ddp_trainer
def answers():
    try:
        return b"ddp_" in urllib.request.urlopen("http://127.0.0.1:9464/metrics").read()
    except OSError:
        return False
while not answers():  # the aggregator, with the prometheus_client of the runtime image
    time.sleep(0.05)
print(json.dumps({
    "package": ddp_trainer.__file__, "python": sys.executable, "rank": os.environ["RANK"],
    "torch": importlib.util.find_spec("torch") is not None,
    "prometheus": importlib.util.find_spec("prometheus_client") is not None,
}), flush=True)
"""
SMALL: Final = ("--cpu", "200m", "--memory", "256Mi", "--shm", "32Mi", "--engine", "job")


@pytest.mark.parametrize("mount", ["image", "copy"])
def test_a_script_runs_in_an_image_that_does_not_hold_the_launcher(
    space: Namespace, runtime_image: str, mount: str
) -> None:
    script = space.home / "show.py"
    script.write_text(SCRIPT)
    job = ("--image", space.image, "--runtime-image", runtime_image, "--runtime-mount", mount, "--python", BASE_PYTHON)
    space.ddp("submit", str(script), "--name", "one", "--nnodes", "2", *SMALL, *job, "--wait").ok()
    lines = space.ddp("logs", "one", "--rank", "all").ok().out.splitlines()
    documents = [json.loads(line[line.index("{") :]) for line in lines if '"package"' in line]
    assert {document.pop("rank") for document in documents} == {"0", "1"}
    package = "/var/run/ddp-runtime/ddp_trainer/__init__.py"
    expected = {"package": package, "python": BASE_PYTHON, "torch": False, "prometheus": False}
    assert documents == [expected, expected]
    assert not [line for line in lines if "Traceback" in line]
