"""``manifests/``: what the chart ddp-platform renders to, for people who have kustomize and no Helm.

The base is the chart at its default values. A component, or an overlay with a ``values.yaml``, is what these values
change: objects that they add, and a JSON patch for each object that they change. Labels and annotations that are Helm's
own are left out, and the objects of ``helm test``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kubectl_ddp.util.yaml_text import LOADER
from tools.release.errors import CannotRelease, run_program
from tools.release.project import CHARTS, ROOT

Object = dict[str, Any]
Key = tuple[str, str, str, str]

MANIFESTS: Final = ROOT / "manifests"
CHART: Final = CHARTS / "ddp-platform"
HOME: Final = "ddp-system"
"""Namespace of what has no other: where documents install the chart."""
OF_HELM: Final = ("helm.sh/chart", "helm.sh/resource-policy", "app.kubernetes.io/managed-by")
WRITTEN: Final = "# Written by `make manifests`"
DASHBOARDS: Final = Path("../charts/ddp-platform/files/dashboards")
"""Directory of the dashboards from ``manifests``. Helm and kustomize make ConfigMaps of the same files."""


@dataclass(frozen=True)
class ManifestLayer:
    """A directory of ``manifests/``, rendered with its ``values.yaml``."""

    path: str
    serves: tuple[str, ...] = ()
    """APIs that a cluster must serve for it."""
    components: tuple[str, ...] = ()
    """Components of an overlay."""

    @property
    def directory(self) -> Path:
        return MANIFESTS / self.path

    @property
    def values(self) -> list[Path]:
        """Files of values that say the same, in order."""
        own = [self.directory / "values.yaml"]
        return [COMPONENTS[name].directory / "values.yaml" for name in self.components] + [p for p in own if p.exists()]

    @property
    def served(self) -> list[str]:
        """APIs that a cluster must serve for it and its components."""
        return [*self.serves, *(api for name in self.components for api in COMPONENTS[name].serves)]


PROMETHEUS: Final = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
KUEUE: Final = ("kueue.x-k8s.io/v1beta2/ClusterQueue",)
COMPONENTS: Final = {
    "gpu": ManifestLayer("components/gpu"),
    "rdma": ManifestLayer("components/rdma"),
    "monitoring": ManifestLayer("components/monitoring", serves=PROMETHEUS),
    "kueue": ManifestLayer("components/kueue", serves=KUEUE),
    "restricted-namespace": ManifestLayer("components/restricted-namespace"),
}
OVERLAYS: Final = {
    "kind": ManifestLayer("overlays/kind"),
    "gpu": ManifestLayer("overlays/gpu", components=("gpu", "monitoring", "kueue")),
    "production": ManifestLayer(
        "overlays/production", components=("gpu", "monitoring", "kueue", "restricted-namespace")
    ),
}


def render_objects(helm: str, values: Iterable[Path] = (), served: Iterable[str] = ()) -> dict[Key, Object]:
    """The chart's objects with these values, without what is Helm's own, and the namespace that Helm would make."""
    words = [word for path in values for word in ("--values", str(path))]
    words += [f"--api-versions={api}" for api in served]
    text = run_program(helm, "template", "ddp", CHART, "--namespace", HOME, *words)
    objects = [without_helm_labels(item) for item in yaml.load_all(text, LOADER) if item and not _is_of_test(item)]
    if any(item["metadata"].get("namespace") == HOME for item in objects):
        objects.insert(0, home_namespace())
    return {object_key(item): item for item in objects}


def without_helm_labels(item: Object) -> Object:
    """The object without labels and annotations that only Helm reads."""
    metadata = dict(item["metadata"])
    for kind in ("labels", "annotations"):
        metadata[kind] = {name: value for name, value in metadata.get(kind, {}).items() if name not in OF_HELM}
        if not metadata[kind]:
            del metadata[kind]
    return {**item, "metadata": metadata}


def home_namespace() -> Object:
    """Return the namespace of ``helm install --create-namespace``, at Pod Security "restricted"."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    component = {"app.kubernetes.io/component": "namespace", "app.kubernetes.io/part-of": "ddp"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME, "labels": component | labels}}


def object_key(item: Object) -> Key:
    """Return what identifies an object: API version, kind, namespace, name."""
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


def files(helm: str) -> dict[Path, str]:
    """Every file that is written, below ``manifests``, and its text."""
    base = render_objects(helm)
    dashboards = [item for item in base.values() if _is_dashboard(item)]
    made = _resources(Path("base"), [item for item in base.values() if not _is_dashboard(item)])
    parts = [f"../{DASHBOARDS}", *_names(made, Path("base"))]
    made[Path("base/kustomization.yaml")] = _kustomization("Kustomization", resources=parts)
    made[DASHBOARDS / "kustomization.yaml"] = _kustomization(
        "Kustomization",
        generatorOptions={"disableNameSuffixHash": True},
        configMapGenerator=[_generator(item) for item in dashboards],
    )
    for component in COMPONENTS.values():
        made |= _changes(component, base, render_objects(helm, component.values, component.served), "Component")
    for overlay in OVERLAYS.values():
        own = base
        if (overlay.directory / "values.yaml").exists():
            own = render_objects(helm, [overlay.directory / "values.yaml"], overlay.serves)
        made |= _changes(overlay, base, own, "Kustomization")
    return made


def write(helm: str) -> Iterator[str]:
    """Write the generated files of ``manifests/``; yield a line for each directory."""
    wanted = files(helm)
    for directory in sorted({path.parent for path in wanted}):
        for old in (MANIFESTS / directory).glob("*.yaml"):
            if old.read_text(encoding="utf-8").startswith(WRITTEN):
                old.unlink()
        yield f"manifests/{directory}"
    for path, text in wanted.items():
        (MANIFESTS / path).parent.mkdir(parents=True, exist_ok=True)
        (MANIFESTS / path).write_text(text, encoding="utf-8")


def _is_dashboard(item: Object) -> bool:
    return item["kind"] == "ConfigMap" and item["metadata"]["name"].startswith("ddp-dashboard-")


def _generator(item: Object) -> Object:
    """Return the generator of the ConfigMap of a file."""
    metadata = item["metadata"]
    options = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    return {"name": metadata["name"], "namespace": metadata["namespace"], "files": [*item["data"]], "options": options}


def _is_of_test(item: Object) -> bool:
    """Return whether it belongs to ``helm test``, which kustomize lacks."""
    return bool(item["metadata"]["labels"].get("app.kubernetes.io/component") == "test")


def _resources(directory: Path, objects: Iterable[Object]) -> dict[Path, str]:
    """A file for each component of the platform: namespaces, roles, policies."""
    parts: dict[str, list[Object]] = {}
    for item in objects:
        parts.setdefault(item["metadata"]["labels"]["app.kubernetes.io/component"], []).append(item)
    return {directory / f"{part}.yaml": _text(items) for part, items in parts.items()}


def _changes(layer: ManifestLayer, base: Mapping[Key, Object], own: Mapping[Key, Object], kind: str) -> dict[Path, str]:
    """The files of a layer: what its values add to the base, and what they change."""
    directory = Path(layer.path)
    if absent := base.keys() - own.keys():
        raise CannotRelease(f"The values of {directory} take {sorted(absent)} away; a component only adds and changes.")
    made = _resources(directory, [item for name, item in own.items() if name not in base])
    patches = [
        {"target": _target(name), "patch": _dump(operations)}
        for name, item in own.items()
        if name in base and (operations := list(json_patch(base[name], item)))
    ]
    made[directory / "kustomization.yaml"] = _kustomization(
        kind,
        resources=[*(["../../base"] if kind == "Kustomization" else []), *_names(made, directory)],
        components=[f"../../components/{name}" for name in layer.components],
        patches=patches,
    )
    return made


def json_patch(old: Any, new: Any, path: str = "") -> Iterator[Object]:
    """Operations of a JSON patch (RFC 6902) that make ``new`` of ``old``; lists are replaced as a whole."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield {"op": "replace", "path": path, "value": new}
        return
    for name in sorted(old.keys() | new.keys()):
        there = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": there}
        elif name not in old:
            yield {"op": "add", "path": there, "value": new[name]}
        else:
            yield from json_patch(old[name], new[name], there)


def _target(name: Key) -> Object:
    version, kind, namespace, called = name
    group, _, number = version.rpartition("/")
    target = {"group": group, "version": number, "kind": kind, "name": called, "namespace": namespace}
    return {field: value for field, value in target.items() if value}


def _names(made: Mapping[Path, str], directory: Path) -> list[str]:
    return sorted(path.name for path in made if path.parent == directory)


def _kustomization(kind: str, **fields: Any) -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    content = {name: value for name, value in fields.items() if value}
    return _text([{"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **content}])


def _text(documents: Iterable[Object]) -> str:
    return f"{WRITTEN}, from charts/ddp-platform and values.yaml.\n" + "---\n".join(map(_dump, documents))


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: texts of several lines as such."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def _dump(document: Any) -> str:
    text: str = yaml.dump(json.loads(json.dumps(document)), Dumper=_Dumper, sort_keys=False, width=120)
    return text


def kustomize_build(kubectl: str, directory: Path, root: Path = MANIFESTS) -> dict[Key, Object]:
    """Return the objects that ``kubectl kustomize`` renders, without a network or a cluster."""
    text = run_program(kubectl, "kustomize", root / directory)
    return {object_key(item): item for item in yaml.load_all(text, LOADER)}


def on_the_base(components: tuple[str, ...], kubectl: str) -> dict[Key, Object]:
    """The base and some components."""
    with tempfile.TemporaryDirectory() as room:
        copy = Path(room, "manifests")
        shutil.copytree(MANIFESTS, copy)
        Path(room, "charts").symlink_to(CHARTS)
        chosen = ManifestLayer("overlays/chosen", components=components)
        (copy / chosen.path).mkdir()
        for path, text in _changes(chosen, {}, {}, "Kustomization").items():
            (copy / path).write_text(text, encoding="utf-8")
        return kustomize_build(kubectl, Path(chosen.path), copy)
