"""Values that ``charts/ddp-platform`` refuses, with the name of the value and the fix."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kubectl_ddp.fabrics.catalog import fabrics
from kubectl_ddp.spec.external_values import KEYS
from kubectl_ddp.spec.fields import FIELDS, PRESET, PRESETS
from tests.render.platform_values import KUEUE, WITH_QUEUES
from tests.support.chart_values import put
from tests.support.helm import PLATFORM, Helm

BEYOND = "limitRange: {enabled: true, defaultRequest: {memory: 2Gi}, default: {memory: 2000Mi}}"
TWO_DEFAULTS = "priorityClasses: [{name: a, value: 1, globalDefault: true}, {name: b, value: 1, globalDefault: true}]"


def a_preset(name: str, setting: str) -> str:
    return f"presets: {{{name}: {{summary: Mine., settings: {{{setting}: {{value: 8, reason: so}}}}}}}}"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("namespaces: [{name: a}, {name: a}]", "namespaces: 'a' is listed twice; keep one."),
        ("namespaces: [{name: a, rdma: true}]", "restricted, which refuses them; set its podSecurity to privileged"),
        (
            "namespaces: [{name: a, create: false, labels: {b: c}}]",
            "'a' has create: false, so its labels .*leave them out",
        ),
        ("test: {namespace: b}", r"test.namespace: 'b' is none of namespaces \(training\); choose one of them"),
        ("prePull: {namespace: b}", r"prePull.namespace: 'b' is none of namespaces \(training\)"),
        (
            BEYOND,
            "the defaultRequest of memory is 2Gi, more than its default, 2000Mi; lower the one or raise the other",
        ),
        ("limitRange: {min: {cpu: 1}, max: {cpu: 900m}}", "the min of cpu is 1, more than its max, 900m"),
        ("limitRange: {enabled: true}", "but no limits are given; set limitRange.min"),
        ("quota: {enabled: true}", "but namespace 'training' has no quota; set quota.hard"),
        ("priorityClasses: [{name: a, value: 1}, {name: a, value: 2}]", "priorityClasses: 'a' is listed twice"),
        (TWO_DEFAULTS, "a and b all have globalDefault: true, and a cluster has one"),
        (
            "queues: {enabled: true}",
            "does not serve Kueue's ClusterQueue .*; install Kueue first, or set queues.enabled to",
        ),
        (
            "monitoring: {enabled: true}",
            "not serve PodMonitor and PrometheusRule .*; install the Prometheus operator first",
        ),
        ("monitoring: {podMonitor: {interval: 5s}}", "podMonitor.scrapeTimeout is 10s, more than its interval, 5s"),
        (
            a_preset("gpu-nccl", "gpus"),
            "'gpu-nccl' is a preset or a fabric that kubectl ddp brings; choose another name",
        ),
        (a_preset("big", "gpu"), "'big' sets 'gpu', and no preset has such a key; there are .*checkpointClaim,"),
        (a_preset("big", "env"), "'big' sets 'env', which is a map; set an entry of it, as in env.NAME"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(helm: Helm, values: str, sentence: str) -> None:
    message = helm.error_response(PLATFORM, yaml.safe_load(values))
    assert re.search(sentence, message), message


OF_OTHERS = [
    {"name": "a100", "resources": {"cpu": {"nominal": 8}}},
    {"name": "h100", "resources": {"memory": {"nominal": 1}}},
]
LONELY = [{"name": "team", "flavors": [{"name": "a100", "resources": {"cpu": {"nominal": 1, "borrow": 1}}}]}]
TWIN = {"name": "small", "namespace": "vision", "clusterQueue": "team"}


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "clusterQueues.0.flavors.0.name",
            "h100",
            r"'team' uses the flavor 'h100', .* none of queues.flavors \(a100\)",
        ),
        (
            "clusterQueues.0.flavors",
            OF_OTHERS,
            r"the flavors of 'team' name different resources \(cpu; memory of 'h100'\)",
        ),
        ("clusterQueues.0.flavors.0.resources.cpu.lend", 9, "'team' lends 9 of cpu, more than it has, 8"),
        ("clusterQueues", LONELY, "'team' lends or borrows cpu without a cohort"),
        ("localQueues.0.clusterQueue", "b", r"'small' names .* 'b', which is none of queues.clusterQueues \(team\)"),
        ("localQueues.0.namespace", "b", r"in the namespace 'b', which is none of namespaces \(vision, speech\)"),
        ("localQueues.1", TWIN, "'small' is listed twice in the namespace 'vision'"),
        ("flavors.1", {"name": "a100"}, "queues.flavors: 'a100' is listed twice"),
    ],
)
def test_queues_that_kueue_would_refuse_are_refused_before(helm: Helm, key: str, value: Any, sentence: str) -> None:
    flavors = put(WITH_QUEUES, "queues.flavors.1", {"name": "h100"}) if value is OF_OTHERS else WITH_QUEUES
    message = helm.error_response(PLATFORM, put(flavors, f"queues.{key}", value), serves=KUEUE)
    assert re.search(sentence, message), message


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ("networkPolicies: {enabled: true}", "networkPolicies"),
        ("namespaces: [{name: a, podSecurty: x}]", "namespaces.0.*podSecurty"),
        ("test: {timeoutSeconds: 5}", "test.timeoutSeconds.*30"),
        ("networkPolicy: {egress: none}", "networkPolicy.egress.*open.*closed"),
        ("namespaces: []", "namespaces.*1"),
        ("presets: {big: {summary: Big., settings: {gpus: {value: 8}}}}", "presets.big.settings.gpus.*reason"),
    ],
)
def test_the_schema_names_the_place_of_a_bad_value(each_helm: Helm, values: str, place: str) -> None:
    message = each_helm.error_response(PLATFORM, yaml.safe_load(values))
    assert "specifications of the schema" in message
    assert re.search(place, message.replace("/", "."), re.DOTALL), message


def test_a_preset_takes_the_keys_that_a_job_has(helm: Helm) -> None:
    keys = [f"{key}.A" if key in FIELDS and FIELDS[key].is_map else key for key in KEYS if key != PRESET]
    settings = {key: {"value": "1", "reason": "so"} for key in keys}
    objects = helm.template(PLATFORM, {"presets": {"all": {"summary": "All.", "settings": settings}}})
    [presets] = [item for item in objects if item["metadata"]["name"] == "ddp-presets"]
    assert set(yaml.safe_load(presets["data"]["all"])["settings"]) == set(keys)


@pytest.mark.parametrize("name", [*PRESETS, *fabrics()])
def test_a_preset_is_not_named_as_one_that_is_there(helm: Helm, name: str) -> None:
    presets = {name: {"summary": "Mine.", "settings": {"gpus": {"value": 8, "reason": "so"}}}}
    assert f"'{name}' is a" in helm.error_response(PLATFORM, {"presets": presets})
