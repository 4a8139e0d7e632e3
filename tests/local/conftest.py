"""What holds for all tests with real processes on this machine."""

from tests.support.no_fork_server import without_fork_servers  # noqa: F401
