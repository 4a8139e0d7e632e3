"""Fixtures for the tests of the controller."""

import pytest

from kubectl_ddp.backends.cluster.http.connection import Connection
from tests.support.api_fixtures import api, backend, connection, notices, server
from tests.support.api_server import ApiServer
from tests.unit.ddp_controller.ddpjob_cluster import GROUPS, Cluster

__all__ = ["api", "backend", "connection", "notices", "server"]


@pytest.fixture
def cluster(server: ApiServer, connection: Connection) -> Cluster:
    server.groups = GROUPS
    return Cluster(server, connection)
