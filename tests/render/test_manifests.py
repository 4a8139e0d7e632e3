"""``manifests/`` is what the chart renders to, whichever components are taken, and builds with no network."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import HOW, Helm, program
from tools.release import manifests
from tools.release.errors import CannotRelease
from tools.release.manifests import COMPONENTS, MANIFESTS, OVERLAYS, Key, Layer, Object, difference, render_objects

KUSTOMIZATIONS = sorted(MANIFESTS.glob("**/kustomization.yaml"))
Objects = dict[Key, Object]
DEPRECATED = {"bases", "commonLabels", "patchesJson6902", "patchesStrategicMerge", "vars"}


@pytest.fixture(scope="module")
def kubectl() -> str:
    found = program("kubectl")
    if found is None:
        pytest.skip(f"This test builds with kubectl. {HOW}")
    return found


@pytest.fixture(scope="module")
def base(helm: Helm) -> Objects:
    """The chart at its defaults."""
    return render_objects(helm.path)


def test_what_is_written_is_fresh(helm: Helm) -> None:
    wanted = manifests.files(helm.path)
    assert {path: (MANIFESTS / path).read_text() for path in wanted} == wanted, "run `make manifests`"
    kept = [path.relative_to(MANIFESTS) for path in MANIFESTS.glob("**/*.yaml")]
    written = {path for path in kept if (MANIFESTS / path).read_text().startswith(manifests.WRITTEN)}
    assert written == {path for path in wanted if path.parts[0] != ".."}


def test_every_directory_is_one_of_a_table() -> None:
    layers = {layer.directory for layer in (*COMPONENTS.values(), *OVERLAYS.values())}
    assert {path.parent for path in KUSTOMIZATIONS} == layers | {MANIFESTS / "base"}


def test_the_base_is_the_chart_at_its_defaults(base: Objects, kubectl: str) -> None:
    made = manifests.kustomize_build(kubectl, Path("base"))
    assert made == base
    assert len(made) > 5


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_the_chart_with_the_values_of_its_components(
    helm: Helm, base: Objects, kubectl: str, name: str
) -> None:
    overlay = OVERLAYS[name]
    made = manifests.kustomize_build(kubectl, Path(overlay.path))
    assert made == render_objects(helm.path, overlay.values, overlay.served)
    assert made != base


@pytest.mark.parametrize(
    "names",
    [*itertools.combinations(COMPONENTS, 1), *itertools.combinations(COMPONENTS, 2), tuple(COMPONENTS)],
    ids="+".join,
)
def test_components_together_are_the_chart_with_their_values(
    helm: Helm, base: Objects, kubectl: str, names: tuple[str, ...]
) -> None:
    together = Layer("", components=names)
    made = manifests.on_the_base(names, kubectl)
    assert made == render_objects(helm.path, together.values, together.served)
    assert made != base


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(MANIFESTS)))
def test_nothing_needs_a_network_or_what_kustomize_gave_up(path: Path) -> None:
    said = yaml.safe_load(path.read_text())
    assert not DEPRECATED & said.keys()
    for entry in (*said.get("resources", ()), *said.get("components", ())):
        assert (path.parent / entry).exists(), entry


def test_nothing_of_helm_is_left(kubectl: str) -> None:
    for overlay in OVERLAYS.values():
        for item in manifests.kustomize_build(kubectl, Path(overlay.path)).values():
            metadata = item["metadata"]
            assert not [key for key in metadata.get("annotations", {}) if "helm.sh" in key]
            assert metadata["labels"].keys() & {*manifests.OF_HELM} == set()


def test_the_overlay_of_the_readme_builds(kubectl: str, tmp_path: Path) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (MANIFESTS / "README.md").read_text(), re.DOTALL)
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    (tmp_path / "charts").symlink_to(MANIFESTS.parent / "charts")  # the base has the dashboards of the chart
    own = tmp_path / "manifests" / "overlays" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(block)
    made = manifests.kustomize_build(kubectl, Path("overlays/own"), tmp_path / "manifests")
    images = re.findall(r"registry\.example\.com/ml/ddp-trainer:\S+-cuda", str(list(made.values())))
    assert len(images) == 1


@pytest.mark.parametrize(
    ("old", "new", "operations"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [{"op": "replace", "path": "/a", "value": 2}]),
        ({"a": 1}, {}, [{"op": "remove", "path": "/a"}]),
        ({}, {"x/y~z": [1]}, [{"op": "add", "path": "/x~1y~0z", "value": [1]}]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, [{"op": "replace", "path": "/a/b", "value": [1]}]),
        ({"a": {}}, {"a": None}, [{"op": "replace", "path": "/a", "value": None}]),
    ],
)
def test_a_change_becomes_a_json_patch(old: Object, new: Object, operations: list[Any]) -> None:
    assert list(difference(old, new)) == operations


def test_values_that_take_an_object_away_make_no_component(base: Objects) -> None:
    less = dict(list(base.items())[1:])
    with pytest.raises(CannotRelease, match="a component only adds and changes"):
        manifests._changes(COMPONENTS["gpu"], base, less, "Component")


def test_what_has_no_namespace_of_its_own_gets_one_that_is_restricted() -> None:
    item = manifests.home()
    assert item["metadata"]["name"] == manifests.HOME
    assert item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
