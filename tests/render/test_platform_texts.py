"""Malformed texts among the values of ddp-platform are refused with a message, by Helm 3 and Helm 4.

The schema has no patterns, since Helm prints only that one does not match; ``files/shapes.yaml`` has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import yaml

from tests.render.platform_values import KUEUE, WITH_QUEUES
from tests.support.chart_values import put
from tests.support.helm import PLATFORM, Helm
from tools.docs.values_table import resolve_reference

SCHEMA: Final = json.loads((PLATFORM / "values.schema.json").read_text())
SHAPES: Final = yaml.safe_load((PLATFORM / "files/shapes.yaml").read_text())
NAME: Final = "is not a valid name in Kubernetes. Use lower case letters, digits and dashes,"
_FLAVOR: Final = "queues/flavors/[]"
TAINTED: Final = (
    *(f"{place}/tolerations" for place in ("controller", "prePull", "test", _FLAVOR)), f"{_FLAVOR}/nodeTaints",
)  # fmt: skip
FREE: Final = {
    *("commonAnnotations/*", "namespaces/[]/annotations/*", "monitoring/dashboards/annotations/*"),
    *(f"presets/*/{key}" for key in ("summary", "settings/*/reason", "settings/*/source")),
    *("presets/*/settings/*/value", "presets/*/settings/*/value/[]", "policies/apiAudiences/[]"),
    *("priorityClasses/[]/description", "prePull/priorityClassName", "monitoring/rules/runbooks"),
    *(f"{place}/[]/{key}" for place in TAINTED for key in ("key", "value")),
}
"""Texts for people, and those that the plugin or the API server alone can judge."""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("namespaces: [{name: a}, {name: Team_A}]", f"namespaces[1].name: 'Team_A' {NAME}"),
        ("namespaces: [{name: ''}]", f"namespaces[0].name: '' {NAME}"),
        ("namespaces: [{name: a, labels: {a b: c}}]", "namespaces[0].labels: 'a b' is not a label key."),
        ("commonLabels: {team: a b}", "commonLabels.team: 'a b' is not a label value. Use letters,"),
        ("image: {registry: 'https://example.com'}", "image.registry: 'https://example.com' is not a registry. Write"),
        ("image: {repository: a@b}", "image.repository: 'a@b' is not an image repository. Write its path,"),
        ("image: {tag: a b}", "image.tag: 'a b' is not a tag. Use letters,"),
        ("image: {tag: latest}", "does not identify an image. Name a version,"),
        (
            "prePull: {images: ['example.com/a:latest']}",
            "prePull.images[0]: 'example.com/a:latest' does not identify an im",
        ),
        ("image: {digest: 'sha256:abc'}", "image.digest: 'sha256:abc' is not a digest. Write 'sha256:' and 64 hexadec"),
        ("quota: {hard: {pods: many}}", "quota.hard.pods: 'many' is not a quantity. Write it as '2', '500m' or"),
        ("priorityClasses: [{name: system-a, value: 1}]", "'system-a' is a name that Kubernetes reserves."),
        ("presets: {Big one: {summary: B., settings: {gpus: {value: 8, reason: so}}}}", f"presets: 'Big one' {NAME}"),
        ("monitoring: {podMonitor: {interval: 1h}}", "interval: '1h' is not a duration in seconds or minutes."),
        (
            "monitoring: {dashboards: {url: grafana.example.com}}",
            "'grafana.example.com' is not an http or https URL.",
        ),
    ],
)
def test_a_text_that_cannot_be_meant_is_refused_in_a_sentence(each_helm: Helm, values: str, sentence: str) -> None:
    assert sentence in each_helm.error_response(PLATFORM, yaml.safe_load(values))


def test_an_amount_of_a_queue_is_looked_at_wherever_it_stands(helm: Helm) -> None:
    values = put(WITH_QUEUES, "queues.clusterQueues.0.flavors.0.resources.cpu.nominal", "8 cores")
    message = helm.error_response(PLATFORM, values, serves=KUEUE)
    assert "queues.clusterQueues[0].flavors[0].resources.cpu.nominal: '8 cores' is not a quantity." in message


def test_every_text_of_the_schema_has_a_shape_or_is_free_and_none_a_pattern() -> None:
    assert set(SHAPES["values"].values()) == set(SHAPES["shapes"])
    assert set(_texts(SCHEMA, "")) == {*SHAPES["values"], *FREE}
    assert not [word for word in ('"pattern"', '"not"') if word in json.dumps(SCHEMA)]


def _texts(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the values of the schema that are free texts, as paths of shapes.yaml."""
    node = resolve_reference(SCHEMA, node)
    kinds = node.get("type", ())
    if "enum" not in node and "string" in ([kinds] if isinstance(kinds, str) else kinds):
        yield path
    for name, item in node.get("properties", {}).items():
        if name != "global":
            yield from _texts(item, f"{path}/{name}".removeprefix("/"))
    if isinstance(node.get("items"), dict):
        yield from _texts(node["items"], f"{path}/[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from _texts(node["additionalProperties"], f"{path}/*")
    if "maxLength" in node.get("propertyNames", {}):
        yield f"{path}/~"
