"""``charts/ddp-job`` as a whole: what it is made of, and that both Helms take it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_ddp.chart.__main__ import generated, main
from kubectl_ddp.chart.fabrics import pattern
from kubectl_ddp.spec.fields import FIELDS
from kubectl_ddp.version import version
from tests.support.helm import CHARTS, Helm
from tests.support.rendered import without_secret, worker_template
from tools import chart_readme

CHART = CHARTS / "ddp-job"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.34.0"


@pytest.mark.parametrize("path", generated())
def test_what_is_taken_from_the_plugin_is_fresh(path: str) -> None:
    assert (CHART / path).read_text(encoding="utf-8") == generated()[path], "run `make docs`"


def test_writing_it_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(generated())
    assert main(["/nowhere"]) == 2
    assert "usage: " in capsys.readouterr().err


def test_the_readme_has_the_table_of_values() -> None:
    assert (CHART / "README.md").read_text(encoding="utf-8") == chart_readme.updated(CHART), "run `make docs`"


def test_every_key_of_a_job_file_is_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(FIELDS) <= set(values)


@pytest.mark.parametrize("shell", ["p5*.48xlarge", "BM.GPU.[HB][123]00.8", "*roce*", "a4x-maxgpu-4g*"])
def test_patterns_of_machines_mean_the_same(shell: str) -> None:
    import fnmatch
    import re

    words = (
        "p5.48xlarge",
        "p5en.48xlarge",
        "p5en-48xlarge",
        "BM.GPU.H200.8",
        "BM.GPU.A100.8",
        "rdma/roce_gdr",
        "a4x-maxgpu-4g-metal",
    )
    for word in words:
        assert bool(re.search(pattern(shell), word)) is fnmatch.fnmatchcase(word, shell)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_lint_finds_nothing(each_helm: Helm, scenario: Path) -> None:
    done = each_helm.run("lint", "--strict", str(CHART), "--values", str(scenario), "--kube-version", KUBERNETES)
    assert done.code == 0, done.out + done.err
    assert "WARNING" not in done.out


def test_lint_finds_nothing_in_the_defaults(each_helm: Helm) -> None:
    done = each_helm.run("lint", "--strict", str(CHART), "--kube-version", KUBERNETES)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_both_helms_render_the_same(each_helm: Helm, helm: Helm, scenario: Path) -> None:
    values = yaml.safe_load(scenario.read_text(encoding="utf-8"))
    how = {"release": "run", "kubernetes": KUBERNETES}
    assert without_secret(each_helm.template(CHART, values, **how)) == without_secret(
        helm.template(CHART, values, **how)
    )


def test_the_chart_is_of_this_release() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert about["version"] == about["appVersion"] == version()
    assert f"ddp-trainer:{version()}" in about["annotations"]["artifacthub.io/images"]


def notes(helm: Helm, **values: Any) -> str:
    """What is said at an installation."""
    if helm.major < 4:
        pytest.skip("Helm 3 makes notes with a cluster only; the tests on a cluster look at them.")
    sound = {"module": "vision.train", "image": "registry.example.com/vision:1"}
    return helm.notes(CHART, sound | values, release="run", namespace="team-a")


def test_the_notes_name_the_next_command(helm: Helm) -> None:
    said = notes(helm, nnodes="2:4", engine="job", queue="team")
    assert "The run run is a Job of 2:4 nodes with 1 process each" in said
    assert "kubectl ddp status run -n team-a" in said
    assert "helm uninstall run -n team-a" in said
    assert "It waits in the queue team until Kueue lets it go: kubectl ddp why run -n team-a" in said


def test_the_notes_warn_of_nothing_where_nothing_is_weak(helm: Helm) -> None:
    assert "Note:" not in notes(helm, checkpointClaim="vision", apiServers=["10.0.0.1"])


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"gpus": 4, "nproc": 1}, "3 GPUs of each node will stand idle"),
        ({"image": "vision:latest"}, "The image 'vision:latest' may be another one on each node"),
        ({"image": "registry.example.com:5000/vision"}, "may be another one on each node"),
        ({"mig": "1g.10gb", "nnodes": 2}, "may share one GPU"),
        ({"metricsFrom": ["*"]}, 'Everybody who reaches the pods may read their metrics (metricsFrom: ["*"]).'),
        ({}, "Without a checkpointClaim each node keeps its own copy"),
        ({}, "apiServers is empty"),
        (
            {"gpus": 8, "nnodes": 2, "fabric": "gcp-tcpx"},
            "gcp-tcpx: The cluster must add the container tcpx-daemon",
        ),
    ],
)
def test_the_notes_warn_of_what_is_weaker_than_it_need_be(helm: Helm, values: dict[str, Any], warning: str) -> None:
    assert warning in notes(helm, **values)


def test_a_value_of_the_command_line_means_what_it_does_in_a_file(each_helm: Helm) -> None:
    said = {"module": "vision.train", "gpus": 8, "memory": "32Gi", "env": {"SEED": 1000000}, "args": [12345678]}
    words = ["module=vision.train", "gpus=8", "memory=32Gi", "env.SEED=1000000", "args={12345678}"]
    how: dict[str, Any] = {"release": "run", "kubernetes": KUBERNETES}
    set_by_words = each_helm.template(CHART, words=[each for word in words for each in ("--set", word)], **how)
    assert without_secret(set_by_words) == without_secret(each_helm.template(CHART, said, **how))


def test_letters_that_yaml_refuses_come_through(helm: Helm) -> None:
    words = ["\x7f", "\x85", "\x9f", "\ufeff", "\u2028", "\x00\x1f"[1:]]
    said = {"module": "vision.train", "args": words, "engine": "job"}
    objects = helm.template(CHART, said, release="run", kubernetes=KUBERNETES)
    [container] = worker_template(objects)["spec"]["containers"]
    assert container["args"][-len(words) :] == words
