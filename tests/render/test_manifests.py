"""``manifests/`` is what the chart renders to, whichever components are taken, and builds with no network."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.helm import Helm
from tools.release import manifests
from tools.release.manifests import COMPONENTS, MANIFESTS, OVERLAYS, Key, ManifestLayer, Object, render_objects

KUSTOMIZATIONS = sorted(MANIFESTS.glob("**/kustomization.yaml"))
Objects = dict[Key, Object]
DEPRECATED = {"bases", "commonLabels", "patchesJson6902", "patchesStrategicMerge", "vars"}


@pytest.fixture(scope="module")
def base(helm: Helm) -> Objects:
    """The chart at its defaults."""
    return render_objects(helm.path)


def test_what_is_written_is_fresh(helm: Helm) -> None:
    wanted = manifests.files(helm.path)
    assert {path: (MANIFESTS / path).read_text() for path in wanted} == wanted, "run `make manifests`"
    stored = [path.relative_to(MANIFESTS) for path in MANIFESTS.glob("**/*.yaml")]
    written = {path for path in stored if (MANIFESTS / path).read_text().startswith(manifests.WRITTEN)}
    assert written == {path for path in wanted if path.parts[0] != ".."}


def test_the_base_is_the_chart_at_its_defaults(base: Objects, kubectl: str) -> None:
    made = manifests.kustomize_build(kubectl, Path("base"))
    assert made == base
    assert len(made) > 5


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_the_chart_with_its_components_values(helm: Helm, base: Objects, kubectl: str, name: str) -> None:
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
    together = ManifestLayer("", components=names)
    made = manifests.on_the_base(names, kubectl)
    assert made == render_objects(helm.path, together.values, together.served)
    assert made != base


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(MANIFESTS)))
def test_nothing_needs_a_network_or_what_kustomize_gave_up(path: Path) -> None:
    text = yaml.safe_load(path.read_text())
    assert not DEPRECATED & text.keys()
    for entry in (*text.get("resources", ()), *text.get("components", ())):
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
