"""Fixtures of all tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_fixtures import api, backend, cli, cluster, connection, notices, server, workdir

__all__ = ["api", "backend", "cli", "cluster", "connection", "notices", "server", "workdir"]


@pytest.fixture(autouse=True, scope="session")
def history_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep jobs of tests out of the history of the user who runs them."""
    home = tmp_path_factory.mktemp("state-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        yield home
