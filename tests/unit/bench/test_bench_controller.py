"""Results that ``bench controller`` computes from steps and object histories, and its proxy that cuts connections."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from bench.drivers.controller_failures import above_quota, repeated_size_changes, size_changes
from bench.drivers.controller_process import TcpProxy
from bench.drivers.object_history import Version
from bench.drivers.step_recorder import Pause, Seen, longest_pause, repeated_steps

ELASTIC = "uid-of-elastic"
QUOTA = 3


def job(number: int, size: int, reason: str = "") -> Version:
    """A version of the elastic job, ``number`` seconds after the first."""
    annotations = {"ddp.dev/size": json.dumps({"reason": reason})} if reason else {}
    metadata = {"name": "elastic", "resourceVersion": str(number), "annotations": annotations}
    return Version(float(number), {"metadata": metadata, "spec": {"parallelism": size}})


def workload(number: int, name: str, *, count: int = 1, reserved: bool = True, ends: bool = False) -> Version:
    """A version of the Workload of another job."""
    metadata: dict[str, Any] = {"uid": name, "resourceVersion": str(number), "ownerReferences": [{"uid": f"of-{name}"}]}
    if ends:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "QuotaReserved", "status": str(reserved)}]
    item = {"metadata": metadata, "spec": {"podSets": [{"count": count}]}, "status": {"conditions": conditions}}
    return Version(float(number), item)


COMES = [workload(10, "a", reserved=False), workload(20, "a")]
GOES = [workload(30, "a", ends=True)]


def test_a_shrink_and_a_growth_for_one_job_each_have_a_reason_and_fit() -> None:
    changes = size_changes([job(1, 3), job(15, 2, "a waits"), job(35, 3, "quota is free")], "elastic")
    assert [(change.before, change.size) for change in changes] == [(3, 2), (2, 3)]
    assert repeated_size_changes(changes, COMES + GOES, ELASTIC) == []
    assert above_quota(changes, COMES + GOES, ELASTIC, QUOTA) == []


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_shrink_for_the_same_job_is_found_even_to_the_same_size(size: int) -> None:
    changes = size_changes([job(1, 3), job(15, 2, "a waits"), job(16, size, "a still waits")], "elastic")
    assert repeated_size_changes(changes, COMES, ELASTIC) == changes[1:]


def test_a_shrink_for_the_next_job_is_not_a_second_one() -> None:
    changes = size_changes([job(1, 3), job(15, 2, "a waits"), job(25, 1, "b waits")], "elastic")
    assert repeated_size_changes(changes, [*COMES, workload(22, "b", reserved=False)], ELASTIC) == []


def test_a_growth_into_the_quota_of_another_job_is_found() -> None:
    changes = size_changes([job(1, 2, "a waits"), job(25, 3, "quota is free")], "elastic")
    assert above_quota(changes, COMES, ELASTIC, QUOTA) == changes


def test_a_growth_that_was_decided_before_the_other_job_was_admitted_is_not_above_the_quota() -> None:
    changes = size_changes([job(1, 2, "a waits"), job(21, 3, "quota is free")], "elastic")
    assert above_quota(changes, COMES, ELASTIC, QUOTA) == []


def test_steps_after_a_restart_from_a_checkpoint_count_as_repeated() -> None:
    assert repeated_steps([Seen(1.0, 2, 0.0, 5), Seen(2.0, 2, 0.0, 6), Seen(3.0, 1, 2.5, 6)]) == 1


def test_a_pause_that_began_before_a_span_counts_as_a_whole() -> None:
    assert longest_pause([Seen(1.0, 2, 0.0), Seen(3.0, 2, 0.0), Seen(9.0, 2, 0.0)], 2.5, 8.0) == Pause(5.0, 3.0)


def test_a_cut_proxy_delays_bytes_until_it_is_joined() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = TcpProxy(*server.getsockname())
        with socket.create_connection(("127.0.0.1", proxy.port)) as client, server.accept()[0] as peer:
            proxy.cut()
            client.sendall(b"late")
            peer.settimeout(0.2)
            with pytest.raises(TimeoutError):
                peer.recv(4)
            peer.settimeout(None)
            proxy.join()
            assert peer.recv(4) == b"late"
        proxy.close()
