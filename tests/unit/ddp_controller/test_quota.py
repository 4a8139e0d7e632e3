"""Sizes by quota: room for the first waiting job, growth where none waits, whole replicas, within bounds and quota."""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import Any

import pytest

from ddp_controller.quota import cluster_queues, decide_sizes
from ddp_controller.running_job import RunningJob
from kubectl_ddp.kube.objects import Object
from tests.unit.ddp_controller.controller_jobs import NOW, TIMING, root, seen

LEADS = {"q": "cq", "q2": "cq2", "stopped": "cq"}
"""LocalQueue → ClusterQueue. The last one is stopped."""


def cluster_queue(cpu: int, *, name: str = "cq", cohort: str = "", flavors: int = 1) -> Object:
    quota = [{"name": "cpu", "nominalQuota": str(cpu)}]
    listed = [{"name": f"f{index}", "resources": quota} for index in range(flavors)]
    spec: Object = {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": listed}]}
    if cohort:
        spec["cohortName"] = cohort
    # What Kueue's own status shows is late, so nothing may depend on it.
    late = {"flavorsReservation": [{"name": "f0", "resources": [{"name": "cpu", "total": "1000"}]}]}
    return {"metadata": {"name": name}, "spec": spec, "status": late}


def workload(
    name: str, count: int, *, priority: int = 0, reserved: bool = True, cpu: int = 1, owner: str = "", queue: str = "q"
) -> Object:
    containers = [{"resources": {"requests": {"cpu": str(cpu)}}}]
    conditions = [{"type": "QuotaReserved", "status": "True" if reserved else "False"}]
    metadata = {"name": name, "namespace": "team", "creationTimestamp": "2026-01-02T03:04:05Z"}
    metadata["ownerReferences"] = [{"uid": owner or f"uid-{name}", "name": owner or name}]  # type: ignore[assignment]
    pods = [{"name": "main", "count": count, "template": {"spec": {"containers": containers}}}]
    assigned = [{"name": "main", "count": 99, "flavors": {"cpu": "f0"}}]  # as admitted, before it was shrunk
    admission = {"admission": {"clusterQueue": LEADS[queue], "podSetAssignments": assigned}} if reserved else {}
    spec = {"queueName": queue, "priority": priority, "podSets": pods}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions, **admission}}


def elastic(name: str, size: int, nnodes: str, *, since: float | None = None, **more: Any) -> RunningJob:
    size_note = {"ddp.dev/size": json.dumps({"since": since})} if since is not None else {}
    notes = {**size_note, **more.pop("annotations", {})}
    return seen(root(size, name=name, nnodes=nnodes, queue="q", elastic=True, annotations=notes, **more))


def local_queue(name: str, leads: str) -> Object:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": leads}}


def stopped(queue: Object) -> Object:
    """The queue with ``stopPolicy: Hold``."""
    return queue | {"status": {"conditions": [{"type": "Active", "status": "False", "message": "It is stopped."}]}}


def decided(
    cpu: int, jobs: list[RunningJob], workloads: list[Object], *others: Object, cohort: str = ""
) -> dict[str, tuple[str, int]]:
    queues = [local_queue(queue, leads) for queue, leads in LEADS.items()]
    queues[-1] = stopped(queues[-1])
    states = cluster_queues(jobs, workloads, queues, [cluster_queue(cpu, cohort=cohort), *others])
    changes = [change for state in states for change in decide_sizes(state, NOW, TIMING)]
    return {change.job.root["metadata"]["name"]: (change.action, change.size) for change in changes}


def waits(count: int, *, priority: int = 10, **more: Any) -> Object:
    return workload("new", count, priority=priority, reserved=False, **more)


def test_a_running_job_of_lower_priority_gives_as_much_as_the_waiting_one_needs() -> None:
    assert decided(4, [elastic("a", 4, "1:4")], [workload("a", 4), waits(1)]) == {"a": ("shrink", 3)}
    assert decided(4, [elastic("a", 4, "1:4")], [workload("a", 4), waits(3)]) == {"a": ("shrink", 1)}


def test_nobody_gives_where_the_waiting_one_would_not_fit_even_then() -> None:
    assert decided(4, [elastic("a", 4, "2:4")], [workload("a", 4), waits(3)]) == {}


def test_a_waiting_job_that_never_fits_holds_nobody_up() -> None:
    assert decided(4, [elastic("a", 2, "1:4")], [workload("a", 2), waits(9)]) == {"a": ("grow", 4)}


def test_a_job_of_the_cohort_that_does_not_fit_holds_nobody_up() -> None:
    job, own = elastic("a", 2, "1:4"), workload("a", 2)
    lender = cluster_queue(4, name="cq2", cohort="all")
    for count, expected in ((6, {}), (7, {"a": ("grow", 4)})):
        other = workload("other", count, reserved=False, queue="q2")
        assert decided(4, [job], [own, other], lender, cohort="all") == expected


def test_jobs_that_wait_in_a_stopped_queue_hold_nobody_up() -> None:
    job, own = elastic("a", 3, "1:4"), workload("a", 3)
    assert decided(4, [job], [own, waits(2)]) == {"a": ("shrink", 2)}
    assert decided(4, [job], [own, waits(2, queue="stopped")]) == {"a": ("grow", 4)}
    other, lender = waits(1, queue="q2"), cluster_queue(4, name="cq2", cohort="all")
    assert decided(4, [job], [own, other], lender, cohort="all") == {}
    assert decided(4, [job], [own, other], stopped(lender), cohort="all") == {"a": ("grow", 4)}


@pytest.mark.parametrize("priority", [0, -5])
def test_jobs_of_equal_or_higher_priority_do_not_give(priority: int) -> None:
    assert decided(4, [elastic("a", 4, "1:4")], [workload("a", 4), waits(1, priority=priority)]) == {}


def test_kueue_is_left_to_admit_what_fits_already() -> None:
    assert decided(4, [elastic("a", 3, "1:4")], [workload("a", 3), waits(1)]) == {}


def test_the_lowest_priority_gives_first_then_the_job_with_most_above_its_minimum() -> None:
    jobs = [elastic("a", 3, "1:3"), elastic("b", 3, "1:3"), elastic("c", 2, "1:3")]
    held = [workload("a", 3, priority=5), workload("b", 3), workload("c", 2)]
    assert decided(8, jobs, [*held, waits(1)]) == {"b": ("shrink", 2)}
    assert decided(8, jobs, [*held, waits(3)]) == {"b": ("shrink", 1), "c": ("shrink", 1)}
    assert decided(8, jobs, [*held, waits(4)]) == {"b": ("shrink", 1), "c": ("shrink", 1), "a": ("shrink", 2)}


def test_only_whole_replicas_come_and_go() -> None:
    job = elastic("a", 4, "2:6", parallel="replicate=1:3,shard=2")
    assert decided(4, [job], [workload("a", 4), waits(1)]) == {"a": ("shrink", 2)}
    assert decided(5, [job], [workload("a", 4)]) == {}
    assert decided(7, [job], [workload("a", 4)]) == {"a": ("grow", 6)}


def test_free_quota_is_spread_by_priority_and_by_the_share_of_the_range() -> None:
    jobs = [elastic("a", 1, "1:3"), elastic("b", 2, "1:3")]
    held = [workload("a", 1), workload("b", 2)]
    assert decided(4, jobs, held) == {"a": ("grow", 2)}
    assert decided(5, jobs, held) == {"a": ("grow", 3)}  # equal shares: the name of the older one decides
    assert decided(9, jobs, held) == {"a": ("grow", 3), "b": ("grow", 3)}
    first = [workload("a", 1), workload("b", 2, priority=1)]
    assert decided(4, jobs, first) == {"b": ("grow", 3)}


def test_nobody_grows_into_what_is_borrowed_or_while_another_waits_in_the_cohort() -> None:
    job, own = elastic("a", 2, "1:4"), workload("a", 2)
    lender = cluster_queue(4, name="cq2", cohort="all")
    assert decided(2, [job], [own], lender, cohort="all") == {}
    assert decided(4, [job], [own], lender, cohort="all") == {"a": ("grow", 4)}
    other = workload("other", 1, reserved=False, queue="q2")
    assert decided(4, [job], [own, other], lender, cohort="all") == {}


def test_quota_that_the_cohort_has_borrowed_is_not_free() -> None:
    job, own = elastic("a", 2, "1:4"), workload("a", 2)
    borrower = cluster_queue(0, name="cq2", cohort="all")
    assert decided(4, [job], [own, workload("other", 1, queue="q2")], borrower, cohort="all") == {"a": ("grow", 3)}
    assert decided(4, [job], [own, workload("other", 2, queue="q2")], borrower, cohort="all") == {}
    held = [own, workload("other", 1, queue="q2"), waits(2)]
    assert decided(4, [job], held, borrower, cohort="all") == {"a": ("shrink", 1)}


def test_within_the_cool_down_of_a_queue_nothing_changes() -> None:
    held = [workload("a", 4), workload("b", 1), waits(1)]
    shrinks = {"a": ("shrink", 3)}
    for ago, expected in ((1, {}), (-0.05, {}), (4, shrinks), (-1e6, shrinks)):  # the last one is in the future
        jobs = [elastic("a", 4, "1:4"), elastic("b", 1, "1:2", since=NOW - ago)]
        assert decided(5, jobs, held) == expected


def test_nothing_changes_until_kueue_has_followed_the_last_change() -> None:
    assert decided(4, [elastic("a", 3, "1:4")], [workload("a", 4), waits(2)]) == {}


def test_a_growth_that_kueue_does_not_grant_is_withdrawn() -> None:
    slices = [workload("a", 2), workload("a-2", 4, reserved=False, owner="uid-a")]
    assert decided(4, [elastic("a", 4, "1:4")], slices) == {"a": ("withdraw", 2)}


def test_an_elastic_job_that_waits_begins_with_what_is_free_or_gets_room_for_its_minimum() -> None:
    new = elastic("new", 4, "2:4", suspended=True)
    assert decided(5, [new, elastic("a", 2, "1:2")], [workload("a", 2), waits(4)]) == {"new": ("start", 3)}
    assert decided(4, [new, elastic("a", 3, "1:3")], [workload("a", 3), waits(4)]) == {"a": ("shrink", 2)}


def test_spares_are_part_of_the_quota_and_exist_beside_the_maximum_only() -> None:
    job = elastic("a", 4, "1:3", spares=1)
    assert decided(4, [job], [workload("a", 4), waits(2)]) == {"a": ("shrink", 2)}
    assert decided(4, [job], [workload("a", 4), waits(3)]) == {"a": ("shrink", 1)}
    assert decided(4, [job], [workload("a", 4), waits(4)]) == {}


def test_a_job_that_moves_keeps_its_size_and_static_ones_and_other_engines_are_not_touched() -> None:
    held = [workload("a", 3), waits(1)]
    moving = {"ddp.dev/move": json.dumps({"size": 2, "since": NOW})}
    assert decided(3, [elastic("a", 3, "1:3", annotations=moving)], held) == {}
    assert decided(3, [elastic("a", 3, "3")], held) == {}
    assert decided(3, [elastic("a", 3, "1:3", gated=False)], held) == {}, "Kueue's feature gate is off"
    assert decided(3, [elastic("a", 3, "1:3", engine="pytorchjob")], held) == {}


def test_the_quota_of_pods_that_have_ended_or_were_not_admitted_is_free() -> None:
    job, own = elastic("a", 2, "1:4"), workload("a", 2)
    other = workload("other", 4)
    assert decided(6, [job], [own, other]) == {}
    other["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    assert decided(6, [job], [own, other]) == {"a": ("grow", 3)}
    other["status"]["admission"]["podSetAssignments"][0]["count"] = 2
    assert decided(6, [job], [own, other]) == {"a": ("grow", 4)}
    other["status"]["reclaimablePods"][0]["count"] = 4
    assert decided(4, [job], [own, other]) == {"a": ("grow", 4)}


def test_a_workload_without_pods_uses_no_quota() -> None:
    assert decided(4, [elastic("a", 2, "1:4")], [workload("a", 2), workload("other", 0)]) == {"a": ("grow", 4)}


def test_a_queue_with_several_flavors_is_left_alone() -> None:
    job, held = elastic("a", 2, "1:4"), workload("a", 2)
    assert [*cluster_queues([job], [held], [local_queue("q", "cq")], [cluster_queue(4, flavors=2)])] == []


def test_no_size_ever_leaves_its_bounds_or_the_quota() -> None:
    """Every size of two jobs and every need of a third."""
    for first, second, need in itertools.product(range(1, 5), range(1, 5), range(5)):
        jobs = [elastic("a", first, "1:4"), elastic("b", second, "2:4")]
        made = decided(8, jobs, [workload("a", first), workload("b", second)] + ([waits(need)] if need else []))
        sizes = {"a": first, "b": second} | {name: size for name, (_, size) in made.items()}
        assert 1 <= sizes["a"] <= 4
        assert min(second, 2) <= sizes["b"] <= 4
        assert sum(sizes.values()) + (need if ("shrink" in {action for action, _ in made.values()}) else 0) <= 8


HOSTILE = (
    {},
    {"parallel": "replicate=1:1000000,shard=1:4096"},
    {"parallel": "replicate=1:1000000,shard=1:64,tp=1:64", "nproc": "8"},
    {"parallel": "replicate=1:1000000,shard=1:4096", "nproc": str(math.lcm(*range(1, 30)))},
    {"unknown": [[]] * 80_000},
)


def of_size(name: str, size: int) -> Object:
    """A Workload all of whose pods are admitted."""
    found = workload(name, size)
    found["status"]["admission"]["podSetAssignments"][0]["count"] = size
    return found


@pytest.mark.parametrize(("size", "waiting"), [(1, 0), (100_000, 1_000_000)])
def test_a_pass_takes_little_time_whatever_specifications_say(size: int, waiting: int) -> None:
    """A pass may take 20 ms per job, and ten times as much here."""
    before = time.process_time()
    names = [f"job-{index}" for index in range(20)]
    jobs = [elastic(name, size, "1:100000", **HOSTILE[index % len(HOSTILE)]) for index, name in enumerate(names)]
    workloads = [of_size(name, size) for name in names] + ([waits(waiting)] if waiting else [])
    changes = decided(20 * 100_000, jobs, workloads)
    assert changes, "the next pass continues"
    assert time.process_time() - before < 10 * 20 * 0.020


def test_a_job_with_many_sizes_reaches_its_maximum_over_several_passes() -> None:
    size, passes = 1, 0
    while size < 1200:
        changes = decided(1200, [elastic("a", size, "1:1200")], [of_size("a", size)])
        size, passes = changes["a"][1], passes + 1
    assert passes == 3
    while size > 1:
        changes = decided(1200, [elastic("a", size, "1:1200")], [of_size("a", size), waits(1199)])
        size, passes = changes["a"][1], passes + 1
    assert passes == 6
