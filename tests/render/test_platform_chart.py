"""``charts/ddp-platform`` as a whole: what Helm makes of it, and of values that are wrong."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from ddp_trainer.common.constants import SECRET_KEY, Env
from ddp_trainer.common.constants import Path as FolderPath
from kubectl_ddp.backends.cluster.write.submission import PLATFORM_MONITOR
from kubectl_ddp.render import render
from kubectl_ddp.render.objects import OWNER_READS
from kubectl_ddp.spec.external_values import CONFIG_MAP, SharedPresets
from kubectl_ddp.version import default_image, version
from tests.render.platform_values import KUEUE, PROMETHEUS, WITH_QUEUES
from tests.render.platform_values_controller import TRAINER
from tests.support.helm import CHARTS, Helm
from tests.support.jobs import a_job
from tests.support.pod_security import beyond_restricted
from tools.release import artifacts

PLATFORM = CHARTS / "ddp-platform"
STANDARD = ("name", "instance", "version", "managed-by", "part-of", "component")


def test_lint_finds_nothing(each_helm: Helm) -> None:
    done = each_helm.run("lint", "--strict", str(PLATFORM), "--kube-version", "1.34.0")
    assert done.code == 0, done.out + done.err
    assert "WARNING" not in done.out


def test_both_helms_render_the_same(each_helm: Helm, helm: Helm) -> None:
    ours, others = each_helm.template(PLATFORM), helm.template(PLATFORM)
    secrets = [item.pop("stringData") for item in (*ours, *others) if item["kind"] == "Secret"]
    assert len({secret["run-secret"] for secret in secrets}) == 2, "each render has another secret"
    assert ours == others


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


def test_every_template_makes_something(helm: Helm, tmp_path: Path) -> None:
    chart = tmp_path / "ddp-platform"
    shutil.copytree(PLATFORM, chart)
    (chart / "files/rules/sample.yaml").write_text("groups: []\n")
    (chart / "files/dashboards/sample.json").write_text("{}\n")
    out = helm.render(chart, EVERYTHING, serves=(*KUEUE, *PROMETHEUS, *TRAINER)).ok().out
    made = set(re.findall(r"^# Source: ddp-platform/(\S+)$", out, re.MULTILINE))
    templates = {str(path.relative_to(PLATFORM)) for path in PLATFORM.glob("templates/**/*.yaml")}
    assert templates - made == {"templates/validate.yaml"}


def test_names_within_a_namespace_are_unique_and_labels_are_the_standard_ones(helm: Helm) -> None:
    objects = helm.template(PLATFORM, EVERYTHING, serves=(*KUEUE, *PROMETHEUS))
    found = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(found) == len(set(found))
    for item in objects:
        labels = item["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in STANDARD} | {"helm.sh/chart"} <= labels.keys(), item
        template = item.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
        assert "helm.sh/chart" not in template, "it changes with every version, and a Job's template may not"


def test_a_pod_that_does_not_meet_it_is_told_by_its_fields() -> None:
    bare = {"hostPID": True, "volumes": [{"name": "v", "hostPath": {}}], "containers": [{"name": "c"}]}
    assert beyond_restricted(bare) == [
        *("hostPID", "volume v: hostPath", "c: allowPrivilegeEscalation", "c: capabilities.drop"),
        *("c: runAsNonRoot", "c: seccompProfile"),
    ]


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


def test_the_pods_of_helm_test_hold_a_random_secret_that_helm_makes_before_them(helm: Helm) -> None:
    objects = helm.template(PLATFORM)
    [secret] = [item for item in objects if item["kind"] == "Secret"]
    [job] = [item for item in objects if item["kind"] == "Job"]
    assert re.fullmatch(r"[0-9a-f]{64}", secret["stringData"][SECRET_KEY])
    hooks, later = secret["metadata"]["annotations"], job["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == later["helm.sh/hook"]
    assert hooks["helm.sh/hook-delete-policy"] == later["helm.sh/hook-delete-policy"]
    assert int(hooks["helm.sh/hook-weight"]) < int(later.get("helm.sh/hook-weight", 0))

    spec = job["spec"]["template"]["spec"]
    volume = {"name": SECRET_KEY, "secret": {"secretName": secret["metadata"]["name"], "defaultMode": OWNER_READS}}
    [container] = spec["containers"]
    assert volume in spec["volumes"]
    assert {"name": SECRET_KEY, "mountPath": str(FolderPath.SECRET), "readOnly": True} in container["volumeMounts"]
    assert {"name": Env.SECRET_FILE, "value": f"{FolderPath.SECRET}/{SECRET_KEY}"} in container["env"]


def test_one_release_has_one_version_and_names_its_image(helm: Helm) -> None:
    about = yaml.safe_load((PLATFORM / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"]
    [trainer, controller] = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    assert (trainer["image"], controller["image"]) == (default_image(), f"ddp-controller:{version()}")
    [test] = [item for item in helm.template(PLATFORM) if item["kind"] == "Job"]
    assert test["spec"]["template"]["spec"]["containers"][0]["image"] == default_image()


def test_the_names_that_the_command_line_looks_for_are_those_that_the_chart_gives(helm: Helm) -> None:
    objects = helm.template(PLATFORM, EVERYTHING, serves=(*KUEUE, *PROMETHEUS))
    maps = [
        item
        for item in objects
        if item["kind"] == "ConfigMap" and "grafana_dashboard" not in item["metadata"]["labels"]
    ]
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
