"""The cluster that KUBECONFIG names: its API, a namespace per test, and the real command line."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.http.kubeconfig import read_context
from tests.support import fork_server
from tests.support.api_server import Json, kubeconfig
from tests.support.helm import Done as Result

T = TypeVar("T")

KINDS = (
    ("kubeflow.org/v1", "pytorchjobs"),
    ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    ("trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("batch/v1", "jobs"),
    ("v1", "pods"),
    ("v1", "services"),
    ("v1", "configmaps"),
    ("v1", "secrets"),
    ("networking.k8s.io/v1", "networkpolicies"),
)
"""Kinds of objects that a job may leave behind, besides PodMonitors."""

PREFLIGHT = {"KUBECTL_DDP_PREFLIGHT": "warn"}
"""Many tests submit jobs that cannot run. Tests of preflight override this."""

RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass
class Namespace:
    """A namespace that enforces Pod Security ``restricted``, and the command line in it."""

    name: str
    api: Api
    image: str
    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    _collections: list[str] = field(default_factory=list)

    def ddp(self, *words: str, seconds: float = 240, environ: Mapping[str, str] | None = None) -> Result:
        """Run ``python -m kubectl_ddp WORDS`` as a person would, in this namespace."""
        command, *rest = words
        done = fork_server.run(
            ["-m", "kubectl_ddp", command, "-n", self.name, *rest],
            env={**os.environ, "HOME": str(self.home), **PREFLIGHT, **self.environ, **(environ or {})},
            timeout=seconds,
            imported=fork_server.COMMAND_LINE,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    def path(self, version: str, plural: str, name: str = "") -> str:
        """Path of an object of this namespace, or of a collection."""
        return collection(version, plural, self.name) + (f"/{name}" if name else "")

    def pods(self, role: str = "worker") -> list[Json]:
        """Return the pods of jobs with a role, sorted by name."""
        found, _ = self.api.items(self.path("v1", "pods"), labelSelector=f"{Label.ROLE}={role}")
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def collections(self) -> list[str]:
        """Return the paths of the kinds that a job may leave behind and that the cluster serves."""
        if not self._collections:
            for version, plural in [*KINDS, ("monitoring.coreos.com/v1", "podmonitors")]:
                with contextlib.suppress(NotServed):
                    self.api.get(self.path(version, plural), limit="1")
                    self._collections.append(self.path(version, plural))
        return self._collections

    def left(self) -> list[str]:
        """Return all objects of jobs in this namespace."""
        return [
            f"{path.rpartition('/')[2]}/{item['metadata']['name']}"
            for path in self.collections()
            for item in self.api.items(path, labelSelector=Label.JOB)[0]
        ]

    def kubeconfig_of_nobody(self) -> Path:
        """Return a kubeconfig of a service account without rights."""
        self.api.create(self.path("v1", "serviceaccounts"), {"metadata": {"name": "nobody"}})
        request = self.api.create(
            self.path("v1", "serviceaccounts", "nobody/token"),
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        folder = self.home / "nobody"
        folder.mkdir()
        user, authority = {"token": request["status"]["token"]}, {"certificate-authority-data": _authority()}
        server = self.api.connection.server
        return kubeconfig(folder, server, namespace=None, user=user, name="nobody", **authority)


def _authority() -> str:
    """The cluster's certificate authority, inline or from the file that the kubeconfig names."""
    cluster = read_context(os.environ["KUBECONFIG"]).cluster
    found: str | None = cluster.get("certificate-authority-data")
    return found or base64.b64encode(Path(cluster["certificate-authority"]).read_bytes()).decode()


def until(what: str, check: Callable[[], T], *, seconds: float = 120) -> T:
    """Poll ``check`` until it returns a true value, and return that value."""
    end = time.monotonic() + seconds
    while True:
        begun = time.monotonic()
        if found := check():
            return found
        now = time.monotonic()
        assert now < end, f"{what} did not happen within {seconds:g} s"
        # Most checks are commands: tests that wait leave the processors to the pods.
        time.sleep(max(0.4, 2 * (now - begun)))


@contextlib.contextmanager
def podless_namespace(api: Api, home: Path) -> Iterator[Namespace]:
    """A namespace for one test whose quota allows no pods."""
    with namespace(api, "registry.invalid/never:1", home) as space:
        quota = {"metadata": {"name": "podless"}, "spec": {"hard": {"pods": "0"}}}
        space.api.create(space.path("v1", "resourcequotas"), quota)
        yield space


@contextlib.contextmanager
def namespace(api: Api, image: str, home: Path, *, security: str = "restricted") -> Iterator[Namespace]:
    """A namespace for one test that enforces a Pod Security level; deleted afterwards."""
    name = f"ddp-test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": security}
    made = api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        yield Namespace(name, api, image, home)
    finally:
        api.delete(f"/api/v1/namespaces/{name}", uid=made["metadata"]["uid"])


def is_second_try(request: pytest.FixtureRequest) -> bool:
    """Return whether the test has failed once and is repeated."""
    return getattr(request.node, "execution_count", 1) > 1
