"""Fixtures of an API server in memory and of what talks to it; the conftest.py of a folder imports those it offers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import Connection, connect
from tests.support.api_server import ApiServer, kubeconfig, serving
from tests.support.command_line import CommandLine


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """An API server. The marker ``api_groups`` sets the groups that it serves."""
    marker = request.node.get_closest_marker("api_groups")
    with serving(ApiServer(*marker.args if marker else ())) as running:
        yield running


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in this process."""
    return CommandLine(capsys)


@pytest.fixture
def connection(server: ApiServer, tmp_path: Path) -> Connection:
    """A connection to the server."""
    return connect(kubeconfig=str(kubeconfig(tmp_path, server.url)))


@pytest.fixture
def api(connection: Connection) -> Api:
    """A client of the server that does not wait before it sends a request again."""
    return Api(connection, sleep=lambda _: None)


@pytest.fixture
def notices() -> list[str]:
    """Messages of the backend to its user."""
    return []


@pytest.fixture
def backend(connection: Connection, notices: list[str]) -> ClusterBackend:
    """The cluster of the server."""
    return ClusterBackend(connection=connection, notice=notices.append)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of a user with a script, an empty home, and no cluster."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in ("KUBECONFIG", "KUBECTL_DDP_IMAGE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def cluster(server: ApiServer, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """The server that the user's kubeconfig names."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(workdir, server.url)))
    return server
