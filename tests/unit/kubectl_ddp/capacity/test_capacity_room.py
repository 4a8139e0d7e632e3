"""What is free, and what the largest job is that fits: machines, kinds of GPU, queues, and what may not be read."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.capacity.model import Gang, Inventory, Share
from kubectl_ddp.capacity.queues import nodes_within_quota, queues_of
from kubectl_ddp.capacity.report import Capacity, best, capacity_to_dict, largest_job_message, tables
from kubectl_ddp.cli.setup.capacity_run import CapacityOptions, count
from kubectl_ddp.errors import Forbidden, NotFound
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.kueue_quota import describe_share
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.util.text_table import Style
from tests.support.cluster_facts import GPU, a_node, a_pod
from tests.support.scripted_backend import ScriptedBackend

PRODUCT = "nvidia.com/gpu.product"


def found(nodes: Any, pods: Any, *queues: Any, **flags: str) -> Capacity:
    wish = {"gpu_type": None, "queue": None, "cpu": "1", "memory": "1Gi"} | flags
    stock = Inventory(nodes=nodes, pods=pods, **dict(zip(("local_queues", "cluster_queues"), queues, strict=False)))
    return count(ScriptedBackend([]), stock, CapacityOptions(**wish))


def machines(count: int, kind: str, gpus: int = 8, **more: Any) -> list[Object]:
    return [a_node(f"{kind}-{number}", gpus=gpus, labels={PRODUCT: kind}, **more) for number in range(count)]


def a_queue(name: str, quota: str, used: str = "0", *, cohort: str = "", resource: str = GPU, **limits: str) -> Object:
    flavor = {"name": "any", "resources": [{"name": resource, "nominalQuota": quota, **limits}]}
    reserved = [{"name": "any", "resources": [{"name": resource, "total": used}]}]
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}]},
        "status": {"flavorsReservation": reserved, "pendingWorkloads": 3},
    }


TEAM = [{"metadata": {"name": "team"}, "spec": {"clusterQueue": "lab"}}]


def share(*clusters: Object) -> Share:
    [queue] = queues_of(Inventory(nodes=[], pods=[], local_queues=TEAM, cluster_queues=clusters)) or ()
    assert queue.shares is not None
    [only] = queue.shares
    return only


def test_the_largest_job_is_the_one_with_most_gpus_and_fewest_nodes() -> None:
    nodes = machines(3, "H100")
    assert found(nodes, []).largest == Gang("H100", 8, 3)
    assert found(nodes, [a_pod("H100-0", gpus=5)]).largest == Gang("H100", 1, 19), "3 + 8 + 8, if nodes are that small"
    told = found(nodes, [a_pod("H100-0", gpus=5)])
    assert [(gang.nodes, gang.gpus) for gang in best(told.gangs or (), "H100")] == [
        (2, 8),
        (4, 4),
        (5, 3),
        (9, 2),
        (19, 1),
    ]


def test_kinds_of_gpu_are_not_mixed_in_one_job() -> None:
    nodes = [*machines(2, "H100"), *machines(3, "A100", gpus=4)]
    assert found(nodes, []).largest == Gang("H100", 8, 2)
    only = found(nodes, [], gpu_type="A100")
    assert only.largest == Gang("A100", 4, 3)
    assert [room.name for room in only.rooms or ()] == ["A100-0", "A100-1", "A100-2"]
    with pytest.raises(NotFound, match=r"No machine has GPUs of type 'B200'\. There is A100, H100\."):
        found(nodes, [], gpu_type="B200")


def test_gpus_without_cores_beside_them_fit_no_job_and_that_is_said() -> None:
    nodes = machines(1, "H100", cpu="2")
    told = found(nodes, [], cpu="3")
    assert told.largest is None
    told = found([*nodes, a_node("plain")], [], cpu="3")
    assert told.largest == Gang("", 0, 5)
    assert "GPUs are free, but the CPU and memory for a job are not" in largest_job_message(told, "x submit")


@pytest.mark.parametrize(
    "state",
    [{"unschedulable": True}, {"taint": "node.kubernetes.io/unreachable:NoExecute"}, {"taint": "team=a:NoSchedule"}],
)
def test_machines_that_take_no_pods_are_shown_and_not_counted(state: dict[str, Any]) -> None:
    told = found([*machines(1, "H100", **state), *machines(1, "A100", gpus=4)], [])
    assert told.largest == Gang("A100", 4, 1)
    [closed] = [room for room in told.rooms or () if room.gpu_type == "H100"]
    assert closed.closed or closed.taints == ("team=a:NoSchedule",)


def test_what_may_not_be_read_is_a_sentence_and_the_rest_is_told() -> None:
    why = "You may not list pods."
    told = found(machines(1, "H100"), Unknown(why))
    assert (told.gangs, told.unread) == (None, (why,))
    assert "- of 8" in "\n".join(table.render(Style()) for table in tables(told))
    assert (
        largest_job_message(told, "") == "Which job fits now is not known, as machines and pods may not both be read."
    )
    [machine] = capacity_to_dict(told)["machines"]
    assert (machine["gpus"], machine["gpus_free"]) == (8, None)
    told = found(Unknown("no nodes"), Unknown("no pods"), TEAM, Unknown("no quotas"))
    assert told.unread == ("no nodes", "no pods", "no quotas")
    assert capacity_to_dict(told)["queues"] == [
        {"name": "team", "cluster_queue": "lab", "inactive": "", "waiting": 0, "shares": None}
    ]
    with pytest.raises(Forbidden, match="no nodes"):
        found(Unknown("no nodes"), Unknown("no pods"), Unknown("no queues"))


def test_the_quota_of_a_queue_bounds_the_job() -> None:
    nodes = machines(4, "H100")
    cluster = a_queue("lab", "20", "4")
    told = found(nodes, [], TEAM, [cluster], queue="team")
    assert told.largest is None, "cores are asked for, and the queue has none"
    cluster["spec"]["resourceGroups"] += [
        a_queue("", "64", resource="cpu")["spec"]["resourceGroups"][0],
        a_queue("", "4Ti", resource="memory")["spec"]["resourceGroups"][0],
    ]
    told = found(nodes, [], TEAM, [cluster], queue="team")
    assert told.largest == Gang("H100", 8, 2), "16 are left of 20"
    [queue] = capacity_to_dict(told)["queues"]
    assert queue["waiting"] == 3
    assert queue["shares"][0] == {
        "flavor": "any", "resource": GPU, "quota": 20.0, "used": 4.0, "borrowable": 0.0
    }  # fmt: skip
    assert found(nodes, [], TEAM, [cluster]).largest == Gang("H100", 8, 4), "without --queue machines alone count"
    with pytest.raises(NotFound, match=r"no LocalQueue 'other'.*There is team\."):
        found(nodes, [], TEAM, [cluster], queue="other")


def test_what_a_cohort_leaves_unused_can_be_borrowed_up_to_the_limits() -> None:
    mine = a_queue("lab", "8", "8", cohort="all")
    other = a_queue("other", "16", "6", cohort="all")
    assert share(mine, other, a_queue("stranger", "99", cohort="elsewhere")).borrowable == 10_000
    assert share(a_queue("lab", "8", "12", cohort="all"), other).borrowable == 6_000, "4 are borrowed already"
    assert share(mine, a_queue("other", "16", "6", cohort="all", lendingLimit="3")).borrowable == 3_000
    assert share(a_queue("lab", "8", "9", cohort="all", borrowingLimit="3"), other).borrowable == 2_000
    assert share(mine, other, a_queue("third", "0", "7", cohort="all")).borrowable == 3_000, "the third has borrowed 7"
    assert share(a_queue("lab", "8", "8"), other).borrowable == 0


def test_quota_that_the_cohort_has_borrowed_is_not_free() -> None:
    """Of 4 that are nominal, 2 are used and the cohort has borrowed the rest."""
    mine = a_queue("lab", "4", "2", cohort="all")
    found = share(mine, a_queue("other", "0", "2", cohort="all"))
    assert (found.free, found.unused, found.borrowable) == (0, 0, 0)
    assert describe_share(found).endswith("2 used, 0 to borrow from cohort 'all', 2 lent to it, 0 free")
    found = share(mine, a_queue("other", "0", "1", cohort="all"))
    assert (found.free, found.unused, found.borrowable) == (1_000, 1_000, 0)
    found = share(mine, a_queue("other", "0", "1", cohort="all"), a_queue("third", "5", cohort="all", lendingLimit="3"))
    assert (found.free, found.unused, found.borrowable) == (4_000, 2_000, 2_000)


def test_a_queue_that_takes_no_jobs_admits_none() -> None:
    stopped = a_queue("lab", "8")
    stopped["status"]["conditions"] = [{"type": "Active", "status": "False", "message": "It is stopped."}]
    [queue] = queues_of(Inventory(nodes=[], pods=[], local_queues=TEAM, cluster_queues=[stopped])) or ()
    assert (queue.inactive, nodes_within_quota(queue, {GPU: 1000})) == ("It is stopped", 0)


def test_tables_say_what_is_free_by_machine_kind_and_queue() -> None:
    told = found(machines(2, "H100"), [a_pod("H100-0", gpus=8)], TEAM, [a_queue("lab", "20", "4", cohort="")])
    by_machine, by_kind, by_queue = (table.render(Style()).splitlines() for table in tables(told))
    assert by_machine[1].split()[:5] == ["H100-0", "H100", "0", "of", "8"]
    assert by_kind[1].split() == ["H100", "2", "8", "of", "16", "1x8,", "2x4,", "4x2,", "8x1"]
    assert by_queue[1].split() == ["team", "lab", "any", GPU, "4", "of", "20", "-", "3", "-"]
    assert largest_job_message(told, "x submit") == (
        "The largest job that fits now: 1 node x 8 GPUs of type H100 ('x submit --nnodes 1 --gpus 8')."
    )
