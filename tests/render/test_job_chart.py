"""``charts/ddp-job`` as a whole: what it is made of, and that both Helms take it alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from charts import readme
from kubectl_ddp.chart.__main__ import generated, main
from kubectl_ddp.chart.fabrics import pattern
from kubectl_ddp.spec.fields import FIELDS
from kubectl_ddp.version import version
from tests.helm import CHARTS, Helm

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
    assert (CHART / "README.md").read_text(encoding="utf-8") == readme.updated(CHART), "run `make docs`"


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
    assert each_helm.template(CHART, values, **how) == helm.template(CHART, values, **how)


def test_the_chart_is_of_this_release() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert about["version"] == about["appVersion"] == version()
    assert f"ddp-trainer:{version()}" in about["annotations"]["artifacthub.io/images"]
