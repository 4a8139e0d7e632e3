"""The release that the plugin says it is."""

from __future__ import annotations

from importlib.metadata import version as installed

from kubectl_ddp.version import version


def test_the_release_is_that_of_the_distribution() -> None:
    assert version() == installed("kubectl-ddp")
