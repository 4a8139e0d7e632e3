"""Secrets in a namespace, in a job's pods and in its output appear in no output of ours.

One job gets a Secret in every supported way, prints it, and fails with it in its error.
"""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import pytest

from ddp_trainer.common.constants import SECRET_KEY, Env, Label
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.render.objects import new_secret
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_engines import need
from tests.support.helm import program
from tests.support.programs import captured

TOKEN = "hf_" + "p1A2" * 8
PASSWORD = "correct-horse-battery"
SCRIPT = """\
import os, pathlib
token, password = os.environ["HF_TOKEN"], os.environ["DB_PASSWORD"]
assert pathlib.Path("/secrets/hub/HF_TOKEN").read_text() == token
print("login with", token, "at", f"https://me:{password}@example.com", flush=True)
raise RuntimeError(f"token {token} of https://me:{password}@example.com is expired")
"""
READS = (
    ("status", "quoting"),
    ("status", "quoting", "-o", "json"),
    ("describe", "quoting"),
    ("list", "-o", "json"),
    ("why", "quoting"),
    ("why", "quoting", "-o", "json"),
    ("events", "quoting"),
    ("logs", "quoting", "--first-error"),
)


@pytest.mark.timeout(240)
def test_no_command_and_no_object_tells_a_secret_that_a_job_is_given(space: Namespace, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    secret = {"metadata": {"name": "hub"}, "stringData": {"HF_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD}}
    space.api.create(space.path("v1", "secrets"), secret)
    words = (
        *(str(script), "--name", "quoting", "--image", space.image, "--nnodes", "1", "--nproc", "1"),
        *("--max-restarts", "0"),
        *("--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi", "--secret-env", "HF_TOKEN=hub:HF_TOKEN"),
        *("--env-from", "secret/hub", "--secret", "hub:/secrets/hub"),
    )
    results = [space.ddp("render", *words).ok(), space.ddp("submit", *words, "--dry-run=server", "-o", "json").ok()]
    ran = space.ddp("submit", *words, "--wait")
    assert ran.code == 10, ran.err
    results += [ran, *(space.ddp(*read) for read in READS)]
    for done in results:
        _is_clean(done.out + done.err)
    assert "is expired" in ran.err
    _is_clean(_bundle(space, tmp_path))
    _is_clean(_objects(space))


def _is_clean(text: str) -> None:
    assert TOKEN not in text
    assert PASSWORD not in text


def _bundle(space: Namespace, folder: Path) -> str:
    path = folder / "quoting.tar.gz"
    space.ddp("bundle", "quoting", "--file", str(path)).ok()
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    assert "login with (redacted)" in text
    return text


def _objects(space: Namespace) -> str:
    """Return all objects and events of the job, and the output of ``kubectl describe``."""
    found = [item for path in space.collections() for item in space.api.items(path)[0]]
    assert any("ddp.dev/first-error" in str(item) for item in found)
    assert any("is expired" in str(item.get("status")) for item in found if "containerStatuses" in str(item))
    events = space.api.items(space.path("v1", "events"))[0]
    return f"{found} {events} {_described(space)}"


def _described(space: Namespace) -> str:
    kubectl = program("kubectl")
    if kubectl is None:
        return ""
    kinds = "pods,pytorchjobs,jobs,services,configmaps,networkpolicies"
    shown = captured([kubectl, "-n", space.name, "describe", kinds, "--selector", "ddp.dev/job=quoting"]).stdout
    assert "Last State" in shown or "Terminated" in shown
    return shown


RUN_READS_ALL = f"""\
import os, stat, sys
path = os.environ["{Env.SECRET_FILE}"]
run, _, value = open(path).read().partition(":")
print("secret of", run, len(value), oct(stat.S_IMODE(os.stat(path).st_mode)), os.access(path, os.W_OK), flush=True)
print(sys.argv, dict(os.environ), flush=True)
raise SystemExit(3)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("engine", ["pytorchjob", "trainjob"])
def test_the_secret_of_a_run_is_read_by_its_pods_alone_and_goes_with_it(
    space: Namespace, tmp_path: Path, engine: str
) -> None:
    need(space, engine)
    root = ENGINES[engine]
    script = tmp_path / "train.py"
    script.write_text(RUN_READS_ALL)
    words = (
        *(str(script), "--name", "reading", "--image", space.image, "--engine", engine, "--max-restarts", "0"),
        *("--nnodes", "1", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi"),
    )
    ran = space.ddp("submit", *words, "--follow")
    assert ran.code == 10, ran.err
    job = space.api.get(space.path(root.api_version, root.plural, "reading"))
    [secret] = [
        item
        for item in space.api.items(space.path("v1", "secrets"))[0]
        if item["metadata"].get("labels", {}).get(Label.JOB) == "reading"
    ]
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["uid"], secret["immutable"]) == (job["metadata"]["uid"], True)
    run_id, _, value = base64.b64decode(secret["data"][SECRET_KEY]).decode().partition(":")
    # The kubelet makes 0440 of 0400, since the file is root's and the pod's group reads it.
    assert f"secret of {run_id} {len(new_secret())} 0o440 False" in ran.out
    bundle = tmp_path / "reading.tar.gz"
    results = [ran, *(space.ddp(*(word.replace("quoting", "reading") for word in words)) for words in READS)]
    results += [space.ddp("bundle", "reading", "--file", str(bundle)), space.ddp("logs", "reading")]
    assert not [done for done in results if value in done.out + done.err]
    assert value not in gzip.decompress(bundle.read_bytes()).decode(errors="replace")
    others = set(space.collections()) - {space.path("v1", "secrets")}
    found = [item for path in others for item in space.api.items(path)[0]]
    assert value not in str([*found, space.api.items(space.path("v1", "events"))[0]])

    assert space.ddp("restart", "reading", "--yes").code == 0
    renewed = until("another secret", lambda: _secrets(space) - {secret["metadata"]["name"]})
    space.ddp("delete", "reading", "--yes").ok()
    until("no secret", lambda: not _secrets(space) & {*renewed, secret["metadata"]["name"]})


def _secrets(space: Namespace) -> set[str]:
    return {item["metadata"]["name"] for item in space.api.items(space.path("v1", "secrets"))[0]}
