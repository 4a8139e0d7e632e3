"""Membership of pods in their run, read from their metrics."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator

import pytest

from ddp_controller.world import PodMembership
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.status.metrics_parser import metrics_path
from tests.support.api_server import Answer, ApiServer
from tests.unit.ddp_controller.controller_jobs import pod

READ = f"GET /api/v1/namespaces/team/pods/digits-0:9464/proxy{metrics_path([Metric.GROUP_STATE]).partition('?')[0]}"
pytestmark = pytest.mark.api_groups({})


@pytest.fixture
def changes() -> queue.SimpleQueue[None]:
    return queue.SimpleQueue()


@pytest.fixture
def joined(api: Api, changes: queue.SimpleQueue[None]) -> Iterator[PodMembership]:
    clock = itertools.count()  # each look at the clock is a second later
    found = PodMembership(api, lambda: changes.put(None), clock=lambda: float(next(clock)))
    yield found
    found.stop()


def state(name: str) -> Answer:
    return Answer(200, f'{Metric.GROUP_STATE}{{state="{name}"}} 1\n')


@pytest.mark.parametrize("name", ["spare", "running"])
def test_a_spare_and_a_member_have_joined(
    server: ApiServer, joined: PodMembership, changes: queue.SimpleQueue[None], name: str
) -> None:
    server.next(READ, state(name))
    joined.check([pod(0)])
    changes.get(timeout=20)
    assert joined.has_joined("digits-0")


def test_a_pod_that_imports_is_asked_again_until_it_has_joined(
    server: ApiServer, joined: PodMembership, changes: queue.SimpleQueue[None]
) -> None:
    server.next(READ, Answer(503), state("starting"), state("spare"))
    assert joined.has_joined("digits-0") is None
    while not joined.has_joined("digits-0"):
        joined.check([pod(0)])
    changes.get(timeout=20)
    assert [str(request) for request in server.requests] == [READ] * 3


def test_a_gone_pod_is_forgotten(server: ApiServer, joined: PodMembership, changes: queue.SimpleQueue[None]) -> None:
    server.next(READ, state("spare"))
    joined.check([pod(0)])
    changes.get(timeout=20)
    joined.keep_only(["digits-1"])
    assert joined.has_joined("digits-0") is None
