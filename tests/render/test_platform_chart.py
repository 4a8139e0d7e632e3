"""``charts/ddp-platform`` as a whole: what Helm makes of it, and of values that are wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from kubectl_ddp.backends.cluster.write.submission import PLATFORM_MONITOR
from kubectl_ddp.render import render
from kubectl_ddp.spec.external_values import CONFIG_MAP, SharedPresets
from tests.render.platform_values import KUEUE, PROMETHEUS, WITH_QUEUES
from tests.support.helm import PLATFORM, Helm
from tests.support.jobs import a_job
from tests.support.pod_security import beyond_restricted
from tests.support.policy_cases import OTHER_RULES, RULES
from tools.release import artifacts

STANDARD = ("name", "instance", "version", "managed-by", "part-of", "component")


def test_lint_finds_nothing(each_helm: Helm) -> None:
    done = each_helm.run("lint", "--strict", str(PLATFORM), "--kube-version", "1.34.0")
    assert done.code == 0, done.out + done.err
    assert "WARNING" not in done.out


def test_both_helms_render_the_same(each_helm: Helm, helm: Helm) -> None:
    own, others = each_helm.template(PLATFORM), helm.template(PLATFORM)
    secrets = [item.pop("stringData") for item in (*own, *others) if item["kind"] == "Secret"]
    assert len({secret["run-secret"] for secret in secrets}) == 2, "each render has another secret"
    assert own == others


@pytest.mark.parametrize("kubernetes", ["1.31.0", "1.36.2", "1.33.4-gke.100"])
def test_it_is_for_every_supported_kubernetes(helm: Helm, kubernetes: str) -> None:
    assert helm.template(PLATFORM, kubernetes=kubernetes)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    assert "requires kubeVersion: >=1.31.0-0" in helm.error_response(PLATFORM, kubernetes="1.30.9")


EVERYTHING = {
    **WITH_QUEUES,
    "quota": {"enabled": True, "hard": {"pods": 10}},
    "limitRange": {"enabled": True, "max": {"memory": "8Gi"}},
    "presets": {"small": {"summary": "Small.", "settings": {"cpu": {"value": 1, "reason": "it is enough"}}}},
    "prePull": {"enabled": True},
    "policies": {"imageDigest": "Warn"},
}


def test_names_within_a_namespace_are_unique_and_labels_are_the_standard_ones(helm: Helm) -> None:
    objects = helm.template(PLATFORM, EVERYTHING, serves=(*KUEUE, *PROMETHEUS))
    found = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(found) == len(set(found))
    for item in objects:
        labels = item["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in STANDARD} | {"helm.sh/chart"} <= labels.keys(), item
        template = item.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
        assert "helm.sh/chart" not in template, "it changes with every version, and a Job's template may not"


def test_confined_it_makes_nothing_outside_of_its_namespaces_but_roles(helm: Helm) -> None:
    confined = {  # as in docs/howto/multi-tenant.md
        **{key: {"enabled": False} for key in ("controller", "monitoring")},
        "roles": {"aggregate": False, "apiServer": False},
        "priorityClasses": [],
        "policies": dict.fromkeys((*RULES, *OTHER_RULES), "Off"),
    }
    outside = {item["kind"] for item in helm.template(PLATFORM, confined) if "namespace" not in item["metadata"]}
    assert outside == {"ClusterRole", "Namespace"}


def test_every_pod_meets_pod_security_restricted(helm: Helm) -> None:
    specs = [
        (item["metadata"]["name"], item["spec"]["template"]["spec"])
        for item in helm.template(PLATFORM, EVERYTHING, serves=(*KUEUE, *PROMETHEUS))
        if item["kind"] in {"Job", "DaemonSet", "Deployment", "StatefulSet"}
    ]
    assert {name for name, _ in specs} == {"ddp-helm-test", "ddp-pre-pull", "ddp-controller"}
    for name, spec in specs:
        assert beyond_restricted(spec) == []
        assert spec.get("automountServiceAccountToken", True) is (name == "ddp-controller")
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_the_names_that_the_command_line_looks_for_are_those_that_the_chart_gives(helm: Helm) -> None:
    objects = helm.template(PLATFORM, EVERYTHING, serves=(*KUEUE, *PROMETHEUS))
    maps = [item for item in objects if item["kind"] == "ConfigMap"]
    maps = [item for item in maps if "grafana_dashboard" not in item["metadata"]["labels"]]
    assert {item["metadata"]["name"] for item in maps} == {CONFIG_MAP}
    assert {item["metadata"]["name"] for item in objects if item["kind"] == "PodMonitor"} == {PLATFORM_MONITOR}
    shared = SharedPresets("here", maps[0]["data"])
    assert shared.read("small").settings["cpu"].reason == "it is enough"


def test_the_platforms_pod_monitor_scrapes_as_a_jobs_own_does(helm: Helm) -> None:
    [platform] = [item for item in helm.template(PLATFORM, serves=PROMETHEUS) if item["kind"] == "PodMonitor"]
    [own] = [item for item in render(a_job(), "run1") if item["kind"] == "PodMonitor"]
    assert platform["spec"]["podMetricsEndpoints"] == own["spec"]["podMetricsEndpoints"]
    selected = platform["spec"]["selector"]["matchLabels"]
    assert selected.items() <= own["spec"]["selector"]["matchLabels"].items()


def test_an_archive_has_the_same_bytes_whenever_its_files_were_written(helm: Helm, tmp_path: Path) -> None:
    if helm.major < artifacts.OLDEST_HELM:
        pytest.skip("Helm 3 stamps archives with the time at which it packs.")
    sums = []
    for moment in (1_700_000_000, 1_800_000_000):
        source, target = tmp_path / f"{moment}", tmp_path / f"{moment}-dist"
        shutil.copytree(PLATFORM, source / "charts" / "ddp-platform")
        for path in source.rglob("*"):
            os.utime(path, (moment, moment))
        artifacts.package_charts(source, target, helm.path)
        sums += [hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()]
    assert len(sums) == 2
    assert len(set(sums)) == 1
