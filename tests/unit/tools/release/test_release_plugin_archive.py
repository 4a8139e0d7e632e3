"""krew's manifest names the archive by its digest for each platform, and shared dashboards name what they need."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from tools.release import shared_dashboards
from tools.release.plugin_archive import PLATFORMS, URL, krew_manifest
from tools.release.project import version


def test_krews_manifest_names_one_archive_for_all_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "https://example.com/files")
    archive = tmp_path / "kubectl-ddp-9.tar.gz"
    archive.write_bytes(b"packed")
    spec = yaml.safe_load(json.dumps(krew_manifest(archive)))["spec"]
    assert spec["version"] == f"v{version()}"
    assert [tuple(platform["selector"]["matchLabels"].values()) for platform in spec["platforms"]] == PLATFORMS
    assert {(platform["uri"], platform["sha256"], platform["bin"]) for platform in spec["platforms"]} == {
        (f"https://example.com/files/v{version()}/{archive.name}", hashlib.sha256(b"packed").hexdigest(), "kubectl-ddp")
    }


def test_a_shared_dashboard_names_every_panel_type_and_asks_for_the_data_source(tmp_path: Path) -> None:
    written = shared_dashboards.write(tmp_path)
    assert {path.name for path in written} == {f"dashboard-{name}.json" for name in ("fleet", "job", "ranks")}
    for path in written:
        dashboard = json.loads(path.read_text())
        required = {(item["type"], item["id"]) for item in dashboard["__requires"]}
        assert {("grafana", "grafana"), ("datasource", "prometheus"), ("panel", "timeseries")} <= required
        assert ("panel", "row") not in required
        assert [(item["name"], item["pluginId"]) for item in dashboard["__inputs"]] == [("DS_PROMETHEUS", "prometheus")]
        assert "${datasource" not in path.read_text()
        sources = {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"}
        assert sources == {"${DS_PROMETHEUS}"}
        assert dashboard["id"] is None
