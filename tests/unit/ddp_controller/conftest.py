"""Fixtures for the tests of the controller."""

from tests.support.api_fixtures import api, connection, server

__all__ = ["api", "connection", "server"]
