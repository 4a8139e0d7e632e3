"""A real Prometheus, started for a test."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port


class Prometheus:
    """The HTTP API of a running one."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}/api/v1/query"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression has now; empty until it answers."""
        try:
            with urllib.request.urlopen(
                f"{self.url}?{urllib.parse.urlencode({'query': expression})}", timeout=5
            ) as report:
                vector: list[dict[str, Any]] = json.load(report)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return []
        return vector


@contextmanager
def prometheus(
    directory: Path, targets: Sequence[str] | Mapping[str, Mapping[str, str]], rules: Path | None = None
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes targets, each ``host:port``, every second; skip the test without the program.
    Targets may have labels, as Kubernetes gives some, and rules are evaluated every second, too.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed, so nothing real can scrape.")
    configuration = directory / "prometheus.yml"
    labels = targets if isinstance(targets, Mapping) else {target: {} for target in targets}
    found = [{"targets": [target], "labels": dict(own)} for target, own in labels.items()]
    values: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "pods", "static_configs": found}],
        "rule_files": [] if rules is None else [str(rules)],
    }
    configuration.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML, too
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
