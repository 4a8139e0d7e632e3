"""Submit and delete a job with the oldest and the newest supported version of the Kubernetes client.

Its certificate comes from the kubeconfig or from a program. ``make clients`` installs the versions under build/clients.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.kubeconfig import read_context
from tests.cluster.live_cluster import Namespace, until
from tests.support.api_server import kubeconfig
from tests.support.programs import captured

VERSIONS = ("33.1.0", "37.0.2")
"""Besides that of .venv, with which all other tests run."""
CLIENTS = Path(__file__).parents[2] / "build" / "clients"
JOB = ("--image", "registry.invalid/never:1", "--engine", "job", "--nnodes", "1", "--nproc", "1", "--memory", "256Mi")


def content(entry: Any, key: str) -> str:
    """Return the PEM of an entry of the kubeconfig, inline or from a file."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"]).decode()
    if not entry.get(key):
        pytest.skip(f"The kubeconfig's user has no {key}, which this test hands out by a program.")
    return Path(entry[key]).read_text()


def made_by_a_program(folder: Path) -> Path:
    """Write a copy of the tests' kubeconfig whose certificate a program prints."""
    context = read_context(os.environ["KUBECONFIG"])
    status = {
        "clientCertificateData": content(context.user, "client-certificate"),
        "clientKeyData": content(context.user, "client-key"),
    }
    version = "client.authentication.k8s.io/v1"
    credential = folder / "credential.json"
    credential.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
    call = {"apiVersion": version, "command": "cat", "args": [str(credential)], "interactiveMode": "Never"}
    cluster = dict(context.cluster)
    return kubeconfig(folder, cluster.pop("server"), namespace=None, user={"exec": call}, **cluster)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_is_submitted_seen_and_deleted_with_credentials_that_the_client_has_made(
    space: Namespace, tmp_path: Path, version: str
) -> None:
    folder = CLIENTS / version
    if not folder.is_dir():
        pytest.skip(f"Run 'make clients' to have version {version} of the Kubernetes client.")
    plain = {"PYTHONPATH": str(folder)}
    environ = {"KUBECONFIG": str(made_by_a_program(tmp_path)), **plain}
    code = "import kubernetes; print(kubernetes.__version__)"
    result = captured([sys.executable, "-c", code], check=True, env={**os.environ, **environ})
    assert result.stdout.strip() == version

    submit = ("submit", "--name", "job", *JOB, "--cpu", "100m", "--command", "true", "-o", "json")
    assert space.ddp(*submit, environ=environ).ok().json["created"] is True
    assert space.ddp(*submit, environ=plain).ok().json["created"] is False
    [listed] = space.ddp("list", "-o", "json", environ=environ).ok().json["items"]
    assert listed["name"] == "job"
    space.ddp("suspend", "job", environ=environ).ok()
    space.ddp("delete", "job", "--yes", environ=environ).ok()
    until("nothing left", lambda: not space.left())
