"""What ``charts/ddp-platform`` refuses, and how it says so: the value, and the way out."""

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
from tests.support.helm import CHARTS, Helm

PLATFORM = CHARTS / "ddp-platform"
SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "two namespaces of one name": (
        {"namespaces": [{"name": "a"}, {"name": "a"}]},
        "namespaces: 'a' stands there twice; keep one.",
    ),
    "RDMA where its pods are refused": (
        {"namespaces": [{"name": "a", "rdma": True}]},
        "'a' has rdma: true, .* and podSecurity: restricted, which refuses them; set its podSecurity to privileged",
    ),
    "labels of a namespace of others": (
        {"namespaces": [{"name": "a", "create": False, "labels": {"b": "c"}}]},
        "'a' has create: false, so its labels and annotations are not this chart's; leave them out",
    ),
    "a test in no namespace of ours": (
        {"test": {"namespace": "b"}},
        r"test.namespace: 'b' is none of namespaces \(training\); choose one of them",
    ),
    "a pre-pull in no namespace of ours": (
        {"prePull": {"namespace": "b"}},
        r"prePull.namespace: 'b' is none of namespaces \(training\)",
    ),
    "a request beyond the limit": (
        {"limitRange": {"enabled": True, "defaultRequest": {"memory": "2Gi"}, "default": {"memory": "2000Mi"}}},
        "the defaultRequest of memory is 2Gi, more than its default, 2000Mi; lower the one or raise the other",
    ),
    "a minimum beyond the maximum": (
        {"limitRange": {"min": {"cpu": 1}, "max": {"cpu": "900m"}}},
        "the min of cpu is 1, more than its max, 900m",
    ),
    "limits of nothing": ({"limitRange": {"enabled": True}}, "there are no amounts; give limitRange.min"),
    "a quota of nothing": (
        {"quota": {"enabled": True}},
        "nothing says how much namespace 'training' may have; give quota.hard",
    ),
    "two classes of one name": (
        {"priorityClasses": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
        "priorityClasses: 'a' stands there twice",
    ),
    "two classes for everybody": (
        {"priorityClasses": [{"name": name, "value": 1, "globalDefault": True} for name in ("a", "b")]},
        "a and b all have globalDefault: true, and a cluster has one",
    ),
    "queues without Kueue": (
        {"queues": {"enabled": True}},
        "does not serve Kueue's ClusterQueue .*; install Kueue first, or set queues.enabled to false",
    ),
    "monitoring without its operator": (
        {"monitoring": {"enabled": True}},
        "does not serve PodMonitor and PrometheusRule .*; install the Prometheus operator first, or set monitoring",
    ),
    "scraping for longer than the interval": (
        {"monitoring": {"podMonitor": {"interval": "5s"}}},
        "monitoring.podMonitor.scrapeTimeout is 10s, more than its interval, 5s",
    ),
    "a preset of kubectl ddp's own name": (
        {"presets": {"gpu-nccl": {"summary": "Mine.", "settings": {"gpus": {"value": 8, "reason": "so"}}}}},
        "'gpu-nccl' is a preset or a fabric that kubectl ddp brings; choose another name",
    ),
    "a misspelt key of a preset": (
        {"presets": {"big": {"summary": "Big.", "settings": {"gpu": {"value": 8, "reason": "so"}}}}},
        "'big' sets 'gpu', and no preset has such a key; there are .*checkpointClaim,",
    ),
    "a map without an entry": (
        {"presets": {"big": {"summary": "Big.", "settings": {"env": {"value": "a", "reason": "so"}}}}},
        "'big' sets 'env', which is a map; set an entry of it, as in env.NAME",
    ),
}
ABOUT_QUEUES = {
    "a flavor that is not there": (
        put(WITH_QUEUES, "queues.clusterQueues.0.flavors.0.name", "h100"),
        r"'team' uses the flavor 'h100', which is none of queues.flavors \(a100\)",
    ),
    "flavors of different resources": (
        put(
            put(WITH_QUEUES, "queues.flavors.1", {"name": "h100"}),
            "queues.clusterQueues.0.flavors.1",
            {"name": "h100", "resources": {"memory": {"nominal": 1}}},
        ),
        r"the flavors of 'team' name different resources \(cpu; memory of 'h100'\)",
    ),
    "more lent than there is": (
        put(WITH_QUEUES, "queues.clusterQueues.0.flavors.0.resources.cpu.lend", 9),
        "'team' lends 9 of cpu, more than it has, 8",
    ),
    "borrowing of nobody": (
        put(
            WITH_QUEUES,
            "queues.clusterQueues",
            [{"name": "team", "flavors": [{"name": "a100", "resources": {"cpu": {"nominal": 1, "borrow": 1}}}]}],
        ),
        "'team' lends or borrows cpu, and has no cohort",
    ),
    "a queue that leads nowhere": (
        put(WITH_QUEUES, "queues.localQueues.0.clusterQueue", "b"),
        r"'small' leads to the ClusterQueue 'b', which is none of queues.clusterQueues \(team\)",
    ),
    "a queue in no namespace of ours": (
        put(WITH_QUEUES, "queues.localQueues.0.namespace", "b"),
        r"'small' is in the namespace 'b', which is none of namespaces \(vision, speech\)",
    ),
    "one queue twice": (
        put(WITH_QUEUES, "queues.localQueues.1", {"name": "small", "namespace": "vision", "clusterQueue": "team"}),
        "'small' stands in the namespace 'vision' twice",
    ),
    "two flavors of one name": (
        put(WITH_QUEUES, "queues.flavors.1", {"name": "a100"}),
        "queues.flavors: 'a100' stands there twice",
    ),
}
BY_SCHEMA: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt value": ({"networkPolicies": {"enabled": True}}, "networkPolicies"),
    "a misspelt value of an item": ({"namespaces": [{"name": "a", "podSecurty": "x"}]}, "namespaces.0.*podSecurty"),
    "a number out of its range": ({"test": {"timeoutSeconds": 5}}, "test.timeoutSeconds.*30"),
    "a word that is none of the choices": ({"networkPolicy": {"egress": "none"}}, "networkPolicy.egress.*open.*closed"),
    "no namespace at all": ({"namespaces": []}, "namespaces.*1"),
    "a preset without a reason": (
        {"presets": {"big": {"summary": "Big.", "settings": {"gpus": {"value": 8}}}}},
        "presets.big.settings.gpus.*reason",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_what_cannot_be_meant_is_refused_with_the_way_out(helm: Helm, case: str) -> None:
    values, sentence = SENTENCES[case]
    assert re.search(sentence, helm.error_response(PLATFORM, values)), helm.error_response(PLATFORM, values)


@pytest.mark.parametrize("case", ABOUT_QUEUES)
def test_queues_that_kueue_would_refuse_are_refused_before(helm: Helm, case: str) -> None:
    values, sentence = ABOUT_QUEUES[case]
    message = helm.error_response(PLATFORM, values, serves=KUEUE)
    assert re.search(sentence, message), message


@pytest.mark.parametrize("case", BY_SCHEMA)
def test_the_schema_names_the_place_of_a_bad_value(each_helm: Helm, case: str) -> None:
    values, place = BY_SCHEMA[case]
    message = each_helm.error_response(PLATFORM, values)
    assert "specifications of the schema" in message
    assert re.search(place, message.replace("/", "."), re.DOTALL), message


def test_a_preset_takes_the_keys_that_a_job_has(helm: Helm) -> None:
    keys = [f"{key}.A" if key in FIELDS and FIELDS[key].is_map else key for key in KEYS if key != PRESET]
    settings = {key: {"value": "1", "reason": "so"} for key in keys}
    [presets] = [
        item
        for item in helm.template(PLATFORM, {"presets": {"all": {"summary": "All.", "settings": settings}}})
        if item["metadata"]["name"] == "ddp-presets"
    ]
    assert set(yaml.safe_load(presets["data"]["all"])["settings"]) == set(keys)


@pytest.mark.parametrize("name", [*PRESETS, *fabrics()])
def test_a_preset_is_not_named_as_one_that_is_there(helm: Helm, name: str) -> None:
    presets = {name: {"summary": "Mine.", "settings": {"gpus": {"value": 8, "reason": "so"}}}}
    assert f"'{name}' is a" in helm.error_response(PLATFORM, {"presets": presets})
