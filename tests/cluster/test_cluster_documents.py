"""Every cluster command in the documents works on a real cluster.

Blocks marked ``console cluster`` run in a new namespace. Blocks marked ``console platform`` and ``console manifests``
run as an administrator who installs the platform and uninstalls it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import NotFound
from tests.cluster.live_cluster import Namespace, is_second_try, until
from tests.docs.test_documents import ROOT, blocks, typed
from tests.support.helm import HOW, TOOLS, program
from tests.support.programs import captured


def kubeconfig_of(space: Namespace) -> Path:
    """Write a copy of the kubeconfig whose context has the test's namespace."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    [context] = [item["context"] for item in config["contexts"] if item["name"] == config["current-context"]]
    context["namespace"] = space.name
    path = space.home / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def run_block(block: str, folder: Path, *, timeout: float = 400, **environ: str) -> str:
    """Run the commands of a block in a folder, in which their state stays, and return their stdout."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"], str(TOOLS)]
    done = captured(
        ["bash", "-c", typed(block)],
        cwd=folder,
        env=os.environ | {"PATH": os.pathsep.join(path), "XDG_STATE_HOME": str(folder / "state")} | environ,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(500)
@pytest.mark.xdist_group("documents")  # two jobs of two pods with one core each could block each other
@pytest.mark.parametrize("block", blocks("console", "cluster"))
def test_a_command_in_a_document_works_on_a_cluster(block: str, space: Namespace, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    shutil.copy(ROOT / "tests/docs/train.py", tmp_path)
    (tmp_path / "charts").symlink_to(ROOT / "charts")  # the base uses the chart's dashboards
    run_block(block, tmp_path, KUBECONFIG=str(kubeconfig_of(space)), IMAGE=space.image)
    until("that nothing is left", lambda: not space.left())


@pytest.fixture
def bare(api: Api, repaired: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """A cluster without the platform, before and after the test; skip if the platform is installed."""
    for name in ("helm", "kubectl"):
        if program(name) is None:
            pytest.skip(f"These commands need {name}. {HOW}")
    if is_second_try(request):
        _take_away()
    until("that namespaces of an earlier test are gone", lambda: not _ending(api), seconds=240)
    for path in ("/api/v1/namespaces/training", "/apis/rbac.authorization.k8s.io/v1/clusterroles/ddp-submit"):
        with contextlib.suppress(NotFound):
            api.get(path)
            pytest.skip(f"This cluster has a platform, which is not ours to take away: {path} is there.")
    yield
    _take_away()


def _ending(api: Api) -> list[str]:
    namespaces = api.items("/api/v1/namespaces")[0]
    ending = [namespace["metadata"]["name"] for namespace in namespaces if "deletionTimestamp" in namespace["metadata"]]
    return [name for name in ending if name in {"training", "ddp-system"}]


def _take_away() -> None:
    """Delete the objects that a failed block leaves, and the namespaces that no block deletes."""
    refused = []
    for name, words in (
        ("helm", ("uninstall", "ddp", "--namespace", "ddp-system", "--ignore-not-found")),
        ("kubectl", ("delete", "--ignore-not-found", "--wait=false", "-k", str(ROOT / "manifests/overlays/kind"))),
        ("kubectl", ("delete", "--ignore-not-found", "--wait=false", "namespace", "ddp-system")),
        ("kubectl", ("delete", "--ignore-not-found", "crd", "ddpjobs.ddp.dev")),
    ):
        done = captured([program(name) or name, *words], timeout=180)
        if done.returncode:
            refused.append(f"{name} {words}\n{done.stderr}")
    assert not refused, "\n".join(refused)


def in_order(word: str) -> list[object]:
    """Return the blocks of each document, joined in order."""
    documents: dict[str, list[str]] = {}
    for found in blocks("console", word):
        documents.setdefault(found.id.partition(":")[0], []).append(found.values[0])
    return [pytest.param("".join(texts), id=f"{name}, {word}") for name, texts in documents.items()]


@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", [*in_order("platform"), *in_order("manifests")])
def test_the_platform_comes_and_goes_as_documented(
    block: str, bare: None, image: str, controller_image: str, tmp_path: Path
) -> None:
    for part in ("charts", "manifests"):
        shutil.copytree(ROOT / part, tmp_path / part)
    run_block(block, tmp_path, IMAGE=image, CONTROLLER_IMAGE=controller_image)
