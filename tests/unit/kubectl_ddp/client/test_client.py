"""The client submits, finds and changes what the command line would, and neither prints nor guesses a place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp import Client
from kubectl_ddp.errors import DdpError, NotFound, TimedOut, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import render
from kubectl_ddp.util.process import location_flags, thread_location
from tests.support import kube_objects
from tests.support.api_server import JOBS, ApiServer, kubeconfig
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job, a_local_job
from tests.support.programs import captured

SIZE: Final[dict[str, Any]] = {"engine": "pytorchjob", "image": "registry.example.com/train:1", "preflight": "off"}


@pytest.fixture(autouse=True)
def job_file(workdir: Path) -> None:
    (workdir / "job.yaml").write_text("apiVersion: ddp.dev/v1\nkind: Job\nscript: train.py\nmaxRestarts: 7\n")


@pytest.fixture
def client(server: ApiServer, workdir: Path) -> Client:
    """A client of the cluster."""
    return Client(kubeconfig=kubeconfig(workdir, server.url))


def spec_of(server: ApiServer, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(server.objects[f"{JOBS}/{name}"]["metadata"]["annotations"][Annotation.SPEC])
    return spec


def train(steps: int) -> None:
    print(steps)


def test_a_file_a_mapping_and_keywords_make_the_job_of_the_same_flags(
    client: Client, server: ApiServer, workdir: Path, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["render", "-f", "job.yaml", "--name", "a", "--nnodes", "1:2", "--env", "A=1", "--cpu", "1.5", "-o", "json"]
    words += ["--affinity", "{podAntiAffinity: {a: [{weight: 1, b: no}]}}", "--label", "team=a"]
    place = ["--kubeconfig", str(workdir / "kubeconfig"), "--engine", "pytorchjob", "--image", SIZE["image"]]
    objects = json.loads(cli(*words, *place).out)["items"]
    wanted = json.loads(job_kinds.root_of(objects)["metadata"]["annotations"][Annotation.SPEC])
    keys: dict[str, Any] = {"nnodes": "1:2", "env": {"A": "1"}, "cpu": 1.5, "labels": {"team": "a"}}
    keys["affinity"] = {"podAntiAffinity": {"a": [{"weight": 1, "b": "no"}]}}
    client.submit("job.yaml", name="a", **keys, **SIZE)
    client.submit({"script": "train.py", "maxRestarts": 7}, name="b", **keys, **SIZE)
    client.submit(Path("train.py"), name="c", max_restarts=7, **keys, **SIZE)
    client.submit(script=workdir / "train.py", name="d", max_restarts="7", **keys, **SIZE)
    for name in "abcd":
        assert spec_of(server, name) | {"script": "train.py"} == wanted | {"name": name, "script": "train.py"}
    assert capsys.readouterr() == ("", "")


def test_a_function_travels_with_its_arguments(client: Client, server: ApiServer) -> None:
    job = client.submit(train, arguments={"steps": 3}, nnodes=2, **SIZE)
    assert (job.where, job.namespace, job.name.rpartition("-")[0]) == ("test", "team", "train")
    spec = spec_of(server, job.name)
    assert (spec["script"], spec["args"], spec["nnodes"]) == ("call_train.py", ['{"steps": 3}'], "2")
    [code] = [item for path, item in server.objects.items() if "/configmaps/" in path]
    assert "def train(steps: int) -> None:" in code["data"]["call_train.py"]


def test_warnings_are_logged_and_not_printed(
    client: Client, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    client.submit("train.py", engine="pytorchjob", preflight="off")
    found = [record.name for record in caplog.records if "No registry serves the image" in record.message]
    assert found == ["kubectl_ddp"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("keys", [{}, {"checkpoint_claim": "shared"}, {"mounts": ["pvc=data:/data"]}])
def test_a_job_without_a_volume_is_said_once_to_lose_its_files(
    client: Client, caplog: pytest.LogCaptureFixture, keys: dict[str, Any]
) -> None:
    with caplog.at_level("INFO"):
        client.submit("train.py", **SIZE, **keys)
    assert sum("lost with it" in record.message for record in caplog.records) == (0 if keys else 1)


@pytest.mark.parametrize(
    ("job", "keys", "named"),
    [
        ("train.py", {"nodes": 2}, "nodes"),
        ("train.py", {"nnodes": 0}, "nnodes"),
        ("train.py", {"env": "A=1"}, "env"),
        ("train.py", {"module": "mine"}, "module"),
        ("train.py", {"arguments": {"steps": 1}}, "arguments"),
        ("gone.py", {}, "gone.py"),
        ({"script": "train.py", "maxRestart": 1}, {}, "maxRestart"),
        ({"script": "train.py", "kind": "Pod"}, {}, "Pod"),
        (train, {"arguments": {"steps": 1}, "args": ["x"]}, "args"),
        (train, {}, "steps"),
        (5, {}, "int"),
        (None, {}, "program"),
    ],
)
def test_a_wrong_job_is_refused_by_what_is_wrong_in_it(
    client: Client, server: ApiServer, job: Any, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises((UsageError, NotFound), match=named):
        client.submit(job, **keys)
    assert {request.method for request in server.requests} <= {"GET"}


def test_a_handle_changes_the_job_and_waits_for_it(client: Client, server: ApiServer) -> None:
    job = client.submit("train.py", name="mine", nnodes="1:3", checkpoint_claim="shared", **SIZE)
    path = f"{JOBS}/mine"
    job.scale(3)
    assert server.objects[path]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    job.suspend()
    assert server.objects[path]["spec"]["runPolicy"]["suspend"] is True
    assert job.resume() is None
    assert server.objects[path]["spec"]["runPolicy"]["suspend"] is False
    ended = server.objects[path] | {"status": {"conditions": [kube_objects.condition("Succeeded")]}}
    ended["metadata"] |= {"creationTimestamp": kube_objects.CREATED}
    server.put(path, ended)
    assert job.wait(20).state == job.state == client.get("mine").state == "Succeeded"
    assert [state.name for state in client.list()] == ["mine"]
    job.delete(wait=True, timeout=20)
    with pytest.raises(NotFound):
        client.get("mine")


def test_a_suggested_command_looks_in_the_place_of_the_client(server: ApiServer, workdir: Path) -> None:
    client = Client(kubeconfig=kubeconfig(workdir, server.url), namespace="team")
    job = client.submit("train.py", name="mine", **SIZE)
    with pytest.raises(TimedOut) as over:
        job.wait(0.1)
    assert f"-n team --kubeconfig {workdir / 'kubeconfig'}" in over.value.hint
    assert location_flags() == ""
    with thread_location(" -n mine"):
        assert location_flags() == " -n mine"


def test_no_job_changes_in_a_guessed_place(workdir: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no kubeconfig"):
        Client().submit("train.py")
    with pytest.raises(UsageError, match="contradict"):
        Client(local=True, context="test").list()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(workdir, server.url)))
    root = job_kinds.root_of(render(a_job(name="twice"), "run1"))
    server.put(f"{JOBS}/twice", root | {"status": {}})
    a_local_job("twice")
    job = Client().get("twice")
    assert job.where == "local"
    for change in (job.delete, job.suspend, job.resume, lambda: job.scale(1)):
        with pytest.raises(UsageError, match="Both"):
            change()
    assert {request.method for request in server.requests} <= {"GET"}


def test_a_place_that_fails_leaves_the_list_of_the_other_with_a_warning(
    workdir: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(workdir, "http://127.0.0.1:9")))
    with pytest.raises(DdpError):
        Client(request_timeout="1s").list()
    a_local_job("mine")
    assert [state.name for state in Client(request_timeout="1s").list()] == ["mine"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_package_imports_the_client_when_it_is_used_and_never_torch_or_click() -> None:
    program = (
        "import sys, kubectl_ddp; assert not [name for name in sys.modules if name.startswith('kubectl_ddp.')];"
        "from kubectl_ddp import Client, Job; assert not {'torch', 'click', 'kubernetes'} & sys.modules.keys()"
    )
    done = captured([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, "")
