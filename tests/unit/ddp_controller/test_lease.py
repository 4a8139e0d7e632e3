"""The Lease: one holder, a takeover after its expiry, and a holder that stops in time."""

from __future__ import annotations

import pytest

from ddp_controller.lease import DEADLINE_SECONDS, LEASE_SECONDS, NAME, RENEW_SECONDS, Lease
from kubectl_ddp.backends.cluster.http.api import Api
from tests.support.api_server import Answer, ApiServer, status
from tests.support.clocks import Clock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"
PATH = f"{LEASES}/{NAME}"
pytestmark = pytest.mark.api_groups({"/apis/coordination.k8s.io/v1": {"Lease": "leases"}})


def holder(server: ApiServer) -> str:
    return str(server.objects[PATH]["spec"]["holderIdentity"])


def test_the_first_candidate_holds_it_and_the_second_waits(server: ApiServer, api: Api) -> None:
    one, two = Lease(api, "team", "one"), Lease(api, "team", "two")
    assert one.try_acquire_or_renew()
    assert not two.try_acquire_or_renew()
    assert holder(server) == "one"


def test_a_dead_holder_is_replaced_after_the_lease_by_the_clock_of_the_candidate(server: ApiServer, api: Api) -> None:
    clock = Clock()
    assert Lease(api, "team", "one").try_acquire_or_renew()
    two = Lease(api, "team", "two", clock=clock)
    assert not two.try_acquire_or_renew()
    clock.now += LEASE_SECONDS - 1
    assert not two.try_acquire_or_renew()
    clock.now += 2
    assert two.try_acquire_or_renew()
    assert holder(server) == "two"
    assert server.objects[PATH]["spec"]["leaseTransitions"] == 1


def test_a_holder_that_renews_is_not_replaced(api: Api) -> None:
    clock = Clock()
    one, two = Lease(api, "team", "one", clock=clock), Lease(api, "team", "two", clock=clock)
    for _ in range(10):
        assert one.try_acquire_or_renew()
        assert not two.try_acquire_or_renew()
        clock.now += RENEW_SECONDS


def test_a_holder_that_cannot_renew_stops_before_its_lease_ends(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one = Lease(api, "team", "one", clock=clock)
    assert one.try_acquire_or_renew()
    server.next(f"GET {PATH}", *(Answer(500, status(500, "InternalError", "down")) for _ in range(6)))
    clock.now += RENEW_SECONDS
    assert one.try_acquire_or_renew()
    clock.now += DEADLINE_SECONDS - RENEW_SECONDS
    assert not one.is_leader


def test_a_holder_that_was_paused_and_replaced_does_not_decide(server: ApiServer, api: Api) -> None:
    clock, later = Clock(), Clock()
    one, two = Lease(api, "team", "one", clock=clock), Lease(api, "team", "two", clock=later)
    assert one.try_acquire_or_renew()
    assert not two.try_acquire_or_renew()
    later.now += LEASE_SECONDS + 1
    assert two.try_acquire_or_renew()
    clock.now += LEASE_SECONDS + 1
    assert not one.is_leader
    assert not one.try_acquire_or_renew()
    assert holder(server) == "two"


def test_a_released_lease_is_taken_over_at_once(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, two = Lease(api, "team", "one"), Lease(api, "team", "two", clock=clock)
    assert one.try_acquire_or_renew()
    assert not two.try_acquire_or_renew()
    one.release()
    clock.now += 2
    assert two.try_acquire_or_renew()
    assert not one.is_leader


def test_of_two_that_write_at_once_one_is_refused(server: ApiServer, api: Api) -> None:
    one = Lease(api, "team", "one")
    server.next(f"POST {LEASES}", Answer(409, status(409, "AlreadyExists", "exists", name=NAME)))
    assert not one.try_acquire_or_renew()
