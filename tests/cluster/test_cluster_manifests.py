"""The API server accepts every object of every overlay and example in ``manifests/``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import Engine
from tests.cluster.live_cluster import Namespace
from tests.support.programs import captured
from tools.docs.examples import RENDERED
from tools.release.manifests import MANIFESTS, OVERLAYS, Object, kustomize_build


def apply(kubectl: str, space: Namespace, objects: Iterable[Object], *words: str) -> list[str]:
    """Return the output lines of ``kubectl apply``, with namespaced objects moved to the test's namespace."""
    moved = [_moved(item, space.name) for item in objects]
    done = captured(
        [kubectl, "apply", "--server-side", "-f", "-", *words],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": moved}),
        env=os.environ,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def _moved(item: Object, namespace: str) -> Object:
    if item["kind"] != "Namespace" and ("namespace" in item["metadata"] or "ddp.dev/job" in item["metadata"]["labels"]):
        return {**item, "metadata": {**item["metadata"], "namespace": namespace}}
    return item


def skip_unless_served(space: Namespace, *paths: str) -> None:
    for path in paths:
        try:
            space.api.get(f"/apis/{path}")
        except NotServed:
            pytest.skip(f"This cluster does not serve {path}.")


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_api_server_takes_every_object_of_an_overlay(space: Namespace, kubectl: str, name: str) -> None:
    overlay = OVERLAYS[name]
    skip_unless_served(space, *{api.rpartition("/")[0] for api in overlay.served})
    objects = kustomize_build(kubectl, Path(overlay.path)).values()
    assert len(apply(kubectl, space, objects, "--dry-run=server")) == len(objects)


@pytest.mark.parametrize("engine", RENDERED)
def test_the_api_server_takes_every_object_of_every_example(space: Namespace, kubectl: str, engine: Engine) -> None:
    files = sorted((MANIFESTS / "examples" / RENDERED[engine]).iterdir())
    objects = [document for path in files for document in yaml.safe_load_all(path.read_text())]
    skip_unless_served(space, *{document["apiVersion"] for document in objects if "." in document["apiVersion"]})
    if engine is Engine.TRAINJOB:
        # The API server refuses a TrainJob whose runtime does not exist.
        apply(kubectl, space, [document for document in objects if document["kind"] == "TrainingRuntime"])
    assert len(apply(kubectl, space, objects, "--dry-run=server")) == len(objects) >= 4
