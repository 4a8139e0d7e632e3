"""Access to the machines of a cluster: a pod on each that can kill processes of other pods.

The main process of a container cannot be killed from within, and no verb of the API server kills it
immediately, as a machine without free memory does. These pods need a namespace without Pod Security. Requests to them
go through the API server's proxy. ``DDP_TEST_NODE_COMMAND`` names the cluster's own command that stops a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.descendants import OUTLIVES
from bench.harness import CannotMeasure
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.read.pod_output import main_container
from kubectl_ddp.errors import DdpError
from kubectl_ddp.util.bounded_response import POD_ANSWER

Json = dict[str, Any]

PORT: Final = 8000
START_SECONDS: Final = 60.0
ANSWER: Final = replace(POD_ANSWER, most_seconds=10.0)
NODE_COMMAND: Final = "DDP_TEST_NODE_COMMAND"
"""Variable that names a command; with ``kill``, ``start``, ``cut`` or ``join`` and a node's name it does just that."""

PROGRAM: Final = """
import http.server, json, os, pathlib, shutil, signal, time, urllib.parse

def host_pid(container, process):
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if container in (entry / "cgroup").read_text():
                lines = (entry / "status").read_text().splitlines()
                inside = next(line for line in lines if line.startswith("NSpid:")).split()[-1]
                if inside == process:
                    return int(entry.name)
        except OSError:
            pass
    return None

class NodeHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        answer = {}
        if url.path == "/kill":
            process = host_pid(query["container"], query["process"])
            if process is not None and query.get("child"):
                children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
                process = int(children[0]) if children else None
            answer = {"process": process, "time": time.time()}
            if process is not None:
                os.kill(process, signal.SIGKILL)
        if url.path == "/folder":
            folder = pathlib.Path("/machine", query["name"])
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        if url.path == "/delete-folder":
            shutil.rmtree(pathlib.Path("/machine", query["name"]), ignore_errors=True)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("", 8000), NodeHandler).serve_forever()
"""
FOLDERS: Final = "/var/tmp"
"""Folder of the machine in which volumes are made."""


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to the machines of one cluster."""

    api: Api
    namespace: str

    def kill_launcher(self, pod: Json) -> float:
        """SIGKILL the launcher of a pod, which is the child of its main process; return the Unix time."""
        return self.kill(pod, child="&child=1")

    def kill(self, pod: Json, process: int = 1, *, child: str = "") -> float:
        """SIGKILL a process of a pod's main container, numbered as inside; answers with the Unix time of it."""
        status = next(
            container for container in pod["status"]["containerStatuses"] if container["name"] == main_container(pod)
        )
        container = status["containerID"].rpartition("/")[2]
        answer = self._request(pod["spec"]["nodeName"], f"kill?container={container}&process={process}{child}")
        if answer["process"] is None:
            raise CannotMeasure(f"Process {process} of pod {pod['metadata']['name']} is not there.")
        return float(answer["time"])

    def folder(self, node: str, name: str) -> str:
        """Make a folder of a machine that every pod on it may write to; answers with its path there."""
        self._request(node, f"folder?name={name}")
        return f"{FOLDERS}/{name}"

    def delete_folder(self, node: str, name: str) -> None:
        """Remove a folder that :meth:`folder` made."""
        self._request(node, f"delete-folder?name={name}")

    def _request(self, node: str, what: str) -> Json:
        path = f"{collection('v1', 'pods', self.namespace)}/node-access-{node}:{PORT}/proxy/{what}"
        answer: Json = json.loads(self.api.text(path, limits=ANSWER))
        return answer


@contextlib.contextmanager
def node_access(api: Api, image: str) -> Iterator[NodeAccess]:
    """Run a pod on every machine that takes workers, in a separate namespace. Raises CannotMeasure."""
    name = f"ddp-test-node-access-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    made = api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        for node in workers(api):
            api.create(collection("v1", "pods", name), _pod(node, image))
        access = NodeAccess(api, name)
        for node in workers(api):
            _wait_for(access, node)
        yield access
    finally:
        api.delete(f"/api/v1/namespaces/{name}", uid=made["metadata"]["uid"])


def workers(api: Api) -> list[str]:
    """Names of the machines that are ready, and take pods without being asked to tolerate anything."""
    nodes, _ = api.items("/api/v1/nodes")
    return sorted(node["metadata"]["name"] for node in nodes if is_ready(node) and not _has_hard_taint(node))


def is_ready(node: Json) -> bool:
    """Return whether the kubelet reports the node as ready."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"]["conditions"]
    )


def _has_hard_taint(node: Json) -> bool:
    return any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints") or ())


def _pod(node: str, image: str) -> Json:
    container = {
        "name": "node-access",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", PROGRAM],
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False, "privileged": True},
        "volumeMounts": [{"name": "machine", "mountPath": "/machine"}],
    }
    return {
        "metadata": {"name": f"node-access-{node}"},
        "spec": {
            "nodeName": node,
            "hostPID": True,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": [{"name": "machine", "hostPath": {"path": FOLDERS, "type": "Directory"}}],
        },
    }


def _wait_for(access: NodeAccess, node: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            access._request(node, "")  # noqa: SLF001 - of this very file
        except DdpError as error:
            if time.monotonic() > end:
                raise CannotMeasure(f"The pod for access to {node} does not answer: {error}") from error
            time.sleep(0.2)
        else:
            return


def node_command() -> list[str] | None:
    """Return the command that stops and starts machines; ``None`` if it is not set."""
    return shlex.split(os.environ.get(NODE_COMMAND, "")) or None


def machine(what: str, node: str) -> float:
    """Run ``kill``, ``start``, ``cut`` or ``join`` for a machine; return the Unix time. Raises CannotMeasure."""
    command = node_command()
    if command is None:
        raise CannotMeasure(f"{NODE_COMMAND} names no command that can {what} a machine.")
    begun = time.time()
    # The processes of a machine that is started here belong to the cluster.
    environment = os.environ | OUTLIVES
    done = subprocess.run([*command, what, node], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise CannotMeasure(f"{' '.join(command)} {what} {node} failed: {done.stderr.strip()}")
    return begun


@contextlib.contextmanager
def without(api: Api, node: str, *, by: str) -> Iterator[float]:
    """A machine that is gone meanwhile, ``by`` ``kill`` or ``cut``; the Unix time at which it went."""
    back = {"kill": "start", "cut": "join"}[by]
    try:
        yield machine(by, node)
    finally:
        machine(back, node)
        end = time.monotonic() + START_SECONDS
        while node not in workers(api):
            if time.monotonic() > end:
                raise CannotMeasure(f"{node} did not come back.")
            time.sleep(0.2)
