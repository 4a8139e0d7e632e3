"""Objects to scan, by their source."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.util.yaml_text import LOADER
from tests.support.helm import CHARTS, Helm, helms, program

Object = dict[str, Any]
ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "manifests"
EVERYTHING: Final[dict[str, Any]] = {
    "image": {"digest": f"sha256:{'0' * 64}"},
    "namespaces": [{"name": "training", "quota": {"requests.cpu": 16}}, {"name": "other", "podSecurity": "baseline"}],
    "presets": {"large": {"summary": "Large.", "settings": {"cpu": {"value": 16, "reason": "a node has as many"}}}},
    "networkPolicy": {"egress": "closed"},
    "quota": {"enabled": True, "hard": {"pods": 10}},
    "limitRange": {"enabled": True, "max": {"cpu": 64}},
    "prePull": {"enabled": True},
    "controller": {"image": {"digest": f"sha256:{'0' * 64}"}},
    "queues": {
        "enabled": True,
        "flavors": [{"name": "any"}],
        "clusterQueues": [{"name": "team", "flavors": [{"name": "any", "resources": {"cpu": {"nominal": 8}}}]}],
        "localQueues": [{"name": "team", "namespace": "training", "clusterQueue": "team"}],
    },
    "policies": {"imageDigest": "Deny"},
    "roles": {"aggregateMetrics": True, "aggregateDebug": True},
}
"""Values with which the platform's chart makes every object that it can."""
SERVES: Final = (
    *("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule"),
    "kueue.x-k8s.io/v1beta2/ClusterQueue",
    "trainer.kubeflow.org/v1alpha1/ClusterTrainingRuntime",
    *(f"{engine.api_version}/{engine.kind}" for engine in ENGINES.values()),
)


def load_objects() -> Iterator[tuple[str, list[Object]]]:
    """Name and objects of each source. Raises SystemExit where Helm or kubectl is missing."""
    if not helms() or (kubectl := program("kubectl")) is None:
        raise SystemExit("error: this needs Helm and kubectl: run 'make tools'.")
    helm = helms()[max(helms())]
    yield from _render_templates(helm)
    for overlay in sorted(path.parent for path in (MANIFESTS / "overlays").glob("*/kustomization.yaml")):
        output = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True, check=True).stdout
        yield f"overlay-{overlay.name}", _load_yaml(output)
    for example in sorted((MANIFESTS / "examples").glob("*/*.yaml")):
        yield f"example-{example.stem}-{example.parent.name}", _load_yaml(example.read_text())


def _render_templates(helm: Helm) -> Iterator[tuple[str, list[Object]]]:
    yield "ddp-platform", helm.template(CHARTS / "ddp-platform")
    yield "ddp-platform-with-everything", helm.template(CHARTS / "ddp-platform", EVERYTHING, serves=SERVES)
    for chart in sorted(CHARTS.glob("*/Chart.yaml")):
        for values in sorted(chart.parent.glob("ci/*-values.yaml")):
            given = yaml.safe_load(values.read_text())
            yield f"{chart.parent.name}-{values.stem}", helm.template(chart.parent, given, serves=SERVES)


def _load_yaml(text: str) -> list[Object]:
    return [item for item in yaml.load_all(text, LOADER) if item]
