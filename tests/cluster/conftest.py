"""Tests on the cluster that KUBECONFIG names, with the image that DDP_TEST_IMAGE names; skipped without them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from bench.descendants import OUTLIVES
from bench.drivers.node_access import NodeAccess, node_access
from bench.drivers.shared_quota import local_queue
from bench.harness import CannotMeasure
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import DdpError
from tests.cluster.cluster_prometheus import ClusterPrometheus
from tests.cluster.helm_release import Release, release
from tests.cluster.live_cluster import Namespace, is_second_try, namespace
from tests.support.fork_server_defaults import fork_servers_only_first  # noqa: F401
from tests.support.helm import Helm

IMAGE = "DDP_TEST_IMAGE"
"""Image that the cluster's nodes can start. If it is set, tests fail when no cluster is reachable."""
CONTROLLER_IMAGE = "DDP_TEST_CONTROLLER_IMAGE"
RUNTIME_IMAGE = "DDP_TEST_RUNTIME_IMAGE"
REQUIRED = "DDP_TEST_REQUIRE_CLUSTER"
"""If this is set, tests fail instead of being skipped when the cluster lacks an operator, an image or Prometheus."""
REPAIR_COMMAND = "DDP_TEST_REPAIR_COMMAND"
"""Shell command that starts those components of the cluster which no longer run."""
LACKING = ("Set DDP_TEST_", "These tests need a cluster", "This cluster ")
"""Prefixes of those skip reasons. Missing GPUs and feature gates still skip."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one if the cluster must be complete."""
    report = yield
    if report.skipped and REQUIRED in os.environ and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(LACKING):
            report.outcome, report.longrepr = "failed", f"{REQUIRED} is set, and this test was skipped: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def groups_are_kept(request: pytest.FixtureRequest) -> None:
    """Fail if xdist spreads the tests of a group over its workers: their jobs would compete for nodes."""
    if getattr(request.config.option, "loadgroup", False):
        names = [item.nodeid for item in request.session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in name for name in names), "This pytest and xdist ignore groups; see pyproject.toml."


@pytest.fixture(autouse=True)
def repaired(request: pytest.FixtureRequest) -> None:
    """Repair the cluster before a test is repeated: it may have failed because a component died."""
    if is_second_try(request) and (command := os.environ.get(REPAIR_COMMAND)):
        subprocess.run(command, shell=True, check=False, env=os.environ | OUTLIVES)


@pytest.fixture(scope="session")
def api() -> Api:
    """The cluster's API server."""
    try:
        api = Api(connect())
        api.get("/version")
    except DdpError as error:
        if IMAGE in os.environ:
            pytest.fail(f"{IMAGE} is set, but no cluster is reachable: {error}")
        pytest.skip(f"These tests need a cluster: {error}")
    return api


@pytest.fixture(scope="session")
def image() -> str:
    if IMAGE not in os.environ:
        pytest.skip(f"Set {IMAGE} to a trainer image that the cluster can start; 'make image' builds one.")
    return os.environ[IMAGE]


@pytest.fixture(scope="session")
def controller_image() -> str:
    if CONTROLLER_IMAGE not in os.environ:
        pytest.skip(f"Set {CONTROLLER_IMAGE} to the target 'controller' of the Dockerfile.")
    return os.environ[CONTROLLER_IMAGE]


@pytest.fixture(scope="session")
def runtime_image() -> str:
    if RUNTIME_IMAGE not in os.environ:
        pytest.skip(f"Set {RUNTIME_IMAGE} to an image of the Dockerfile's target runtime that the cluster can start.")
    return os.environ[RUNTIME_IMAGE]


@pytest.fixture(scope="session")
def reach(api: Api, image: str) -> Iterator[NodeAccess]:
    """A pod on every node that can kill processes of other pods."""
    with node_access(api, image) as items:
        yield items


@pytest.fixture(scope="session")
def prometheus(api: Api) -> ClusterPrometheus:
    """The cluster's Prometheus; skip without one."""
    found = ClusterPrometheus(api)
    if not found.is_there:
        pytest.skip("This cluster has no Prometheus in the namespace 'monitoring'.")
    return found


@pytest.fixture
def space(api: Api, image: str, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace for one test."""
    with namespace(api, image, tmp_path) as made:
        yield made


@pytest.fixture
def platform(helm: Helm, space: Namespace) -> Iterator[Release]:
    """A release of ddp-platform in the test's namespace."""
    with release(helm, space) as made:
        yield made


@pytest.fixture
def queue(space: Namespace) -> Iterator[str]:
    """A LocalQueue with quota for three pods, and a priority class, all named like the test's namespace."""
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(local_queue(space.api, space.name, cpu="60m", memory="1Gi"))
        except CannotMeasure as error:
            pytest.skip(str(error))
        yield name
