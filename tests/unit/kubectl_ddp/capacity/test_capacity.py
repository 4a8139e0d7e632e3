"""The free capacity: machines, kinds of GPU and queues, and facts that a user may not read."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.capacity import Capacity, CapacityObjects, capacity_to_dict, report_capacity, tables
from kubectl_ddp.errors import Forbidden, NotFound
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.util.text_table import Style
from tests.support.cluster_facts import GPU, a_node, a_pod

PRODUCT = "nvidia.com/gpu.product"
TEAM = [{"metadata": {"name": "team"}, "spec": {"clusterQueue": "lab"}}]


def found(nodes: Any, pods: Any, *queues: Any, gpu_type: str | None = None, queue: str | None = None) -> Capacity:
    read = dict(zip(("local_queues", "cluster_queues"), queues, strict=False))
    return report_capacity("test", CapacityObjects(nodes=nodes, pods=pods, **read), gpu_type=gpu_type, queue=queue)


def machines(count: int, kind: str, gpus: int = 8, **more: Any) -> list[Object]:
    return [a_node(f"{kind}-{number}", gpus=gpus, labels={PRODUCT: kind}, **more) for number in range(count)]


def lab(**condition: str) -> Object:
    """A ClusterQueue of 20 GPUs, of which 4 are reserved."""
    flavor = {"name": "any", "resources": [{"name": GPU, "nominalQuota": "20", "borrowingLimit": None}]}
    reserved = [{"name": "any", "resources": [{"name": GPU, "total": "4"}]}]
    return {
        "metadata": {"name": "lab"},
        "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]},
        "status": {"flavorsReservation": reserved, "pendingWorkloads": 3, "conditions": [condition]},
    }


def shown(capacity: Capacity) -> list[list[str]]:
    """Lines of each table."""
    return [table.render(Style()).splitlines() for table in tables(capacity)]


def test_tables_show_what_is_free_by_machine_kind_and_queue() -> None:
    report = found(machines(2, "H100"), [a_pod("H100-0", gpus=8), a_pod("H100-1", phase="Failed")], TEAM, [lab()])
    by_machine, by_kind, by_queue = shown(report)
    assert by_machine[1].split() == ["H100-0", "H100", "0", "of", "8", "15", "of", "16", "63Gi", "of", "64Gi", "-"]
    assert by_machine[2].split()[2:8] == ["8", "of", "8", "16", "of", "16"]
    assert by_kind[1].split() == ["H100", "2", "8", "of", "16"]
    assert by_queue[1].split() == ["team", "lab", "any", GPU, "4", "of", "20", "3", "-"]


def test_only_machines_of_a_kind_and_one_queue_are_shown_if_asked_for() -> None:
    nodes = [*machines(2, "H100"), *machines(3, "A100", gpus=4)]
    only = found(nodes, [], gpu_type="A100")
    assert [node.machine.name for node in only.nodes or ()] == ["A100-0", "A100-1", "A100-2"]
    with pytest.raises(NotFound, match=r"No machine has GPUs of type 'B200'\. There is A100, H100\."):
        found(nodes, [], gpu_type="B200")
    queues = [*TEAM, {"metadata": {"name": "also"}, "spec": {"clusterQueue": "lab"}}]
    assert [item.name for item in found(nodes, [], queues, [lab()], queue="team").queues or ()] == ["team"]
    with pytest.raises(NotFound, match=r"LocalQueue 'other' does not exist.*There is also, team\."):
        found(nodes, [], queues, [lab()], queue="other")


@pytest.mark.parametrize(
    ("state", "note", "free"),
    [
        ({"unschedulable": True}, "is cordoned", "0"),
        ({"taint": "node.kubernetes.io/unreachable:NoExecute"}, "is tainted node.kubernetes.io/unreachable", "0"),
        ({"taint": "team=a:NoSchedule"}, "team=a:NoSchedule", "8"),
    ],
)
def test_what_keeps_pods_away_is_noted_and_a_closed_node_is_full(state: dict[str, Any], note: str, free: str) -> None:
    by_machine, by_kind = shown(found(machines(1, "H100", **state), []))
    assert note in by_machine[1]
    assert by_kind[1].split()[2:] == [free, "of", "8"]


def test_what_may_not_be_read_is_a_sentence_and_the_rest_is_told() -> None:
    why = "You may not list pods."
    report = found(machines(1, "H100"), Unknown(why))
    assert report.unread == (why,)
    assert "- of 8" in shown(report)[0][1]
    [machine] = capacity_to_dict(report)["machines"]
    assert (machine["gpus"], machine["gpus_free"]) == (8, None)
    report = found(Unknown("no nodes"), Unknown("no pods"), TEAM, Unknown("no quotas"))
    assert report.unread == ("no nodes", "no pods", "no quotas")
    assert capacity_to_dict(report)["queues"] == [
        {"name": "team", "cluster_queue": "lab", "inactive": "", "waiting": 0, "shares": None}
    ]
    with pytest.raises(Forbidden, match="no nodes"):
        found(Unknown("no nodes"), Unknown("no pods"), Unknown("no queues"))


def test_a_queue_has_its_quotas_and_the_reason_why_it_takes_no_jobs() -> None:
    stopped = lab(type="Active", status="False", message="It is stopped.")
    vague = {"type": "Active", "status": "False", "message": "Can't submit new workloads to clusterQueue"}
    local = [{**TEAM[0], "status": {"conditions": [vague]}}]
    [queue] = capacity_to_dict(found([], [], local, [stopped]))["queues"]
    assert (queue["inactive"], queue["waiting"]) == ("It is stopped", 3)
    assert queue["shares"] == [{"flavor": "any", "resource": GPU, "quota": 20.0, "used": 4.0}]
