"""Each command on a real cluster, run by a user with exactly the rights in the table of rights.

A proxy records every request. If the table lacks a right, the API server refuses a request. tests/unit looks for rights
that no request needs, in all states of a job.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import call
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.errors import NotFound
from kubectl_ddp.rbac.rights import DDPJOBS, EVERYWHERE, KINDS, OWN, REACHING, SECTIONS, Right, build_roles, needs
from tests.cluster.api_proxy import ApiProxy, Asked, api_proxy
from tests.cluster.live_cluster import PREFLIGHT, Namespace, Result, namespace, until
from tests.cluster.test_cluster_engines import need

pytestmark = pytest.mark.xdist_group("rbac")  # one stage for all
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
ANYBODY_MAY: Final = re.compile(r"/version|/api(/v1)?|/apis(/[^/]+){0,2}|/apis/auth(entic|oriz)ation\.k8s\.io/.*")
"""Discovery, and reviews of the user's own rights."""
SIZE: Final = ("--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi", "--engine", "pytorchjob")
SCRIPT: Final = """\
import signal, time
from ddp_trainer.metrics import attach
meter = attach.meter()
signal.signal(signal.SIGTERM, lambda *_: exit(143))
print("here", flush=True)
time.sleep(600)
"""
PRESETS: Final = {
    "metadata": {"name": "ddp-presets"},
    "data": {"small": "summary: Small.\nsettings:\n  cpu:\n    value: 100m\n    reason: It is enough.\n"},
}
"""ConfigMap that the chart renders from its presets."""
READS: Final[dict[str, tuple[str, ...]]] = {
    "wait": ("wait", "count", "--for=running", "--timeout", "2m"),
    "list": ("list",),
    "status": ("status", "count"),
    "why": ("why", "count"),
    "hang": ("hang", "count", "--timeout", "0"),
    "bundle": ("bundle", "count", "--file", "{home}/{number}.tar.gz"),
    "logs": ("logs", "count"),
    "events": ("events", "count"),
    "top": ("top", "count", "-o", "json"),
    "report": ("report", "count", "-o", "{home}/{number}.html"),
    "capacity": ("capacity",),
    "doctor": ("doctor",),
}
CHANGES: Final[dict[str, tuple[str, ...]]] = {
    "scale": ("scale", "count", "--nnodes", "2"),
    "suspend": ("suspend", "count"),
    "resume": ("resume", "count"),
    "restart": ("restart", "count", "--yes"),
    "clone": ("clone", "count", "--name", "again"),
    "delete": ("delete", "again", "--yes"),
    "prune": ("prune", "--yes"),
}
SAYS_WHAT_IS_MISSING: Final = {"preflight": 5, "doctor": 4}
"""Command → exit code. These commands check the rights of all commands, and report those as missing."""


@dataclass
class Stage:
    """The namespace, the proxy, and the recorded requests of each command."""

    space: Namespace
    proxy: ApiProxy
    script: Path
    done: dict[str, Result] = field(default_factory=dict)
    asked: dict[str, list[tuple[Right, int]]] = field(default_factory=dict)
    """Command → right of each request, and status of the response."""

    def user(self, command: str) -> str:
        return f"{self.space.name}:{command}"

    def do(self, command: str, words: Sequence[str]) -> None:
        """Run a command as its user, and record its requests."""
        self.proxy.fresh()
        made = [word.format(home=self.space.home, number=0) for word in words]
        self.done[command] = self.space.ddp(
            *made, "--as", self.user(command), environ={"KUBECONFIG": str(self.proxy.kubeconfig)}
        )
        found = (
            (right_of(item, self.space.name), self.proxy.answered.get(item.number, 0)) for item in self.proxy.asked
        )
        self.asked[command] = [(right, status) for right, status in found if right is not None]

    def reach(self, command: str, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
        """Start a command that runs kubectl, which connects to the API server directly."""
        return subprocess.Popen(
            [sys.executable, "-m", "kubectl_ddp", command, "-n", self.space.name, "--as", self.user(command), *words],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **PREFLIGHT, "HOME": str(self.space.home)},
        )


def right_of(request: Asked, namespace: str) -> Right | None:
    """Return the right that a request needs; ``None`` for requests that every user may make."""
    if ANYBODY_MAY.fullmatch(request.path):
        return None
    done = call(request.method, request.path, server="", context="", watches="watch" in request.query)
    if done.resource == "namespaces":
        return Right.of(done.verb, "namespaces")
    where = {namespace: OWN, "": EVERYWHERE}.get(done.namespace, done.namespace)
    named = (done.name,) if where not in {OWN, EVERYWHERE} and done.name else ()
    return Right.of(done.verb, done.resource, where, named)


def submit(space: Namespace, script: Path, name: str) -> tuple[str, ...]:
    """Return the arguments that submit a job."""
    words = ("--name", name, "--image", space.image, "--nnodes", "1:2", *SIZE, "--preflight=warn")
    return ("submit", str(script), "--code", str(script.parent), *words)


@contextlib.contextmanager
def _granted(api: Api, stage_name: str, command: str) -> Iterator[None]:
    """Grant a user the rights of one command."""
    # With DDPJobs even if they are not served: the API server checks rights before it looks for the kind.
    served = {*Discovery(api).filter_served(KINDS), DDPJOBS}
    rights = [right for need_, right in needs(served, commands=(command,))]
    made = []
    for item in build_roles(dict.fromkeys(rights), namespace=stage_name, user=f"{stage_name}:{command}"):
        metadata = item["metadata"]
        metadata["name"] = f"{stage_name}-{command}"
        if "roleRef" in item:
            item["roleRef"]["name"] = metadata["name"]
        inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        path = f"{RBAC}{inside}/{item['kind'].lower()}s"
        with contextlib.suppress(NotFound):  # a right in a namespace that does not exist
            made.append((f"{path}/{metadata['name']}", api.create(path, item)["metadata"]["uid"]))
    try:
        yield
    finally:
        for path, uid in made:
            with contextlib.suppress(NotFound):
                api.delete(path, uid=uid)


@pytest.fixture(scope="module")
def rbac_stage(api: Api, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Every command, each run by another user."""
    home = tmp_path_factory.mktemp("home")
    script = home / "code" / "count.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    with contextlib.ExitStack() as stack:
        space = stack.enter_context(namespace(api, image, home))
        need(space, "pytorchjob")
        made = Stage(space, stack.enter_context(api_proxy(api.connection, home / "proxy")), script)
        for command in _commands():
            stack.enter_context(_granted(api, space.name, command))
        until("rights", lambda: _has_rights(api, made))
        _play(made)
        yield made


def _commands() -> list[str]:
    return list(dict.fromkeys(command for commands in SECTIONS.values() for command in commands))


def _has_rights(api: Api, stage: Stage) -> bool:
    """Return True once the API server has read the rights of the last user."""
    attributes = {"namespace": stage.space.name, "verb": "list", "resource": "pods"}
    spec = {"user": stage.user(_commands()[-1]), "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])


def _play(stage: Stage) -> None:
    """Run all commands in an order in which each has work to do."""
    space = stage.space
    space.api.create(space.path("v1", "configmaps"), PRESETS)
    stage.do("preflight", ("preflight", *submit(space, stage.script, "count")[1:-1]))
    stage.do("submit", submit(space, stage.script, "count"))
    stage.do("wait", READS["wait"])
    # Both: `hang` reports a rank that waits beside a pod without metrics.
    until("two ranks", lambda: len(space.ddp("status", "count", "-o", "json").ok().json["ranks"]) == 2)
    for command in ("list", "status", "why", "hang", "bundle", "logs", "events", "top", "report", "capacity", "doctor"):
        stage.do(command, READS[command])
    stage.do("dashboard", ("dashboard", "count", "--print"))
    # The cluster may have no Grafana, one, or several: the search must be allowed.
    found = stage.done["dashboard"]
    stage.done["dashboard"] = Result(
        0 if found.code in {0, NotFound.exit_code, 2} else found.code, found.out, found.err
    )
    profiled = stage.reach("profile", "count", "--rank", "0", "--timeout", "30s", stderr=subprocess.PIPE)
    # The script has no torch; its error shows that the command reached it.
    stage.done["profile"] = Result(0 if "has not imported torch" in profiled.communicate(timeout=60)[1] else 1, "", "")
    with stage.reach("exec", "count", "--rank", "0", "--", "true") as done:
        stage.done["exec"] = Result(done.wait(60), "", "")
    with stage.reach("port-forward", "count", "--rank", "0", ":metrics") as tunnel:
        assert tunnel.stdout is not None
        stage.done["port-forward"] = Result(0 if "Forwarding" in tunnel.stdout.readline() else 1, "", "")
        tunnel.terminate()
    job = ("--name", "shown", "--image", space.image, "--preset", "small", "--command", "true")
    for command, words in {"render": ("render", *job), "presets": ("presets",)}.items():
        stage.do(command, words)
    for command, words in CHANGES.items():
        stage.do(command, words)


@pytest.mark.parametrize("command", _commands())
def test_a_command_needs_no_right_that_the_table_does_not_tell(rbac_stage: Stage, command: str) -> None:
    done = rbac_stage.done[command]
    assert done.code == SAYS_WHAT_IS_MISSING.get(command, 0), done.err
    granted = {right for _, right in needs(commands=(command,))}
    requests = rbac_stage.asked.get(command, [])
    assert {str(right) for right, status in requests if status == 403} == set()
    assert {str(right) for right, _ in requests if right not in granted} == set()
    assert requests or command in REACHING
