"""Fixtures of the tests with real processes on this machine."""

from tests.support.fork_server_defaults import fork_servers_only_first  # noqa: F401
from tests.support.launch_harness import stage_fixture  # noqa: F401
from tests.support.local_place import place_fixture, typed_fixture  # noqa: F401
