"""Fixtures of the tests with other libraries."""

from tests.support.launch_harness import stage_fixture  # noqa: F401
