"""Whether the nodes of a job fit: now, when something ends, or never."""

from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.gang import fits_empty_cluster, fits_now, reaches_pods
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.values.engine import Engine, Gang
from kubectl_ddp.values.node_requirements import Placement, Topology
from kubectl_ddp.values.parsers import Toleration
from kubectl_ddp.values.program import Launcher
from kubectl_ddp.values.quantity import Cpu, Memory, Nodes
from tests.support.cluster_facts import a_node, a_pod, a_subject, facts


def ever(nodes: list[Object], *, grows: bool = False, **job: Any) -> Finding:
    [found] = fits_empty_cluster(a_subject(**job), facts(nodes=nodes, grows=grows))
    return found


def now(nodes: list[Object], pods: list[Object], **job: Any) -> Finding:
    [found] = fits_now(a_subject(**job), facts(nodes=nodes, pods=pods))
    return found


def gpu_job(nodes: int, gpus: int = 8, **more: Any) -> dict[str, Any]:
    return {"nnodes": Nodes(nodes, nodes), "nproc": gpus, "gpus": gpus, **more}


H100 = [a_node(f"h{number}", gpus=8) for number in range(3)]


def test_a_job_that_fits_empty_machines_passes() -> None:
    assert (ever(H100, **gpu_job(3)).severity, ever(H100, **gpu_job(4)).severity) == (Severity.OK, Severity.ERROR)


def test_what_can_never_fit_is_said_with_what_there_is() -> None:
    found = ever([*H100, a_node("small")], **gpu_job(4))
    assert found.severity is Severity.ERROR
    assert "needs 4 nodes at the same time, and the cluster has room for 3" in found.message
    assert "3 machines take 1 each" in found.message
    assert "1 machine cannot: it has no nvidia.com/gpu of 8" in found.message


def test_a_job_of_torchrun_fits_without_room_for_a_store() -> None:
    exact = [a_node("a", cpu="2", memory="2Gi"), a_node("b", cpu="2", memory="2Gi")]
    assert ever(exact, nnodes=Nodes(2, 2)).severity is Severity.ERROR
    assert ever(exact, nnodes=Nodes(2, 2), launcher=Launcher.TORCHRUN).severity is Severity.OK


def test_on_machines_that_may_become_more_nothing_is_never() -> None:
    assert ever(H100, grows=True, **gpu_job(4)).severity is Severity.WARNING


def test_an_elastic_job_is_told_how_many_it_will_ever_have() -> None:
    found = ever(H100, **gpu_job(2) | {"nnodes": Nodes(2, 8)})
    assert (found.severity, "never be more than 3 of 8 nodes" in found.message) == (Severity.WARNING, True)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_node("a", gpus=4), "it has 4 nvidia.com/gpu of 8"),
        (a_node("a", gpus=8, cpu="1"), "it has 1 cpu of 2"),
        (a_node("a", gpus=8, taint="team=other:NoSchedule"), "the taint team=other:NoSchedule is not tolerated"),
        (a_node("a", gpus=8, labels={"disk": "hdd"}), "the label disk is hdd, not ssd"),
        (a_node("a", gpus=8), "the label disk=ssd is not set"),
    ],
)
def test_the_reason_of_a_machine_is_the_schedulers(node: Object, why: str) -> None:
    selector = {"disk": "ssd"} if "disk" in why else {}
    assert why in ever([node], **gpu_job(1, node_selector=selector)).message


def test_taints_that_the_job_tolerates_are_none() -> None:
    node = a_node("a", gpus=8, taint="team=ours:NoSchedule")
    assert ever([node], **gpu_job(1, tolerations=(Toleration("team", "ours"),))).severity is Severity.OK


def test_the_taint_of_gpu_machines_is_tolerated_by_workers_and_leaves_the_store_without_a_place() -> None:
    tainted = [a_node("a", gpus=8, taint="nvidia.com/gpu=present:NoSchedule")]
    found = ever(tainted, **gpu_job(1))
    assert (found.severity, "rendezvous store finds no machine" in found.message) == (Severity.ERROR, True)
    assert ever([*tainted, a_node("cpu")], **gpu_job(1)).severity is Severity.OK


def test_the_store_needs_room_beside_the_workers() -> None:
    """Two cores: the worker takes them all, and 50 thousandths are missing."""
    assert ever([a_node("a", cpu="2")], nnodes=Nodes(1, 1), cpu=Cpu(2000)).severity is Severity.ERROR
    assert ever([a_node("a", cpu="2050m")], nnodes=Nodes(1, 1), cpu=Cpu(2000)).severity is Severity.OK


def test_nodes_that_must_lie_in_one_rack_count_the_roomiest_rack() -> None:
    racks = [a_node(f"r{n}", gpus=8, labels={"rack": "a" if n < 3 else "b"}) for n in range(5)]
    pack = (Topology(Placement.PACK, "rack", required=True),)
    assert ever(racks, **gpu_job(3, topology=pack)).severity is Severity.OK
    assert ever(racks, **gpu_job(4, topology=pack)).severity is Severity.ERROR


def test_nodes_that_must_be_spread_are_limited_by_the_fullest_domain() -> None:
    zones = [a_node("a", labels={"zone": "a"}, cpu="4"), *(a_node(f"b{n}", labels={"zone": "b"}) for n in range(3))]
    spread = {"cpu": Cpu(1900), "memory": Memory(2**30), "shm": Memory(2**28)}
    wish = (Topology(Placement.SPREAD, "zone", required=True),)
    assert ever(zones, nnodes=Nodes(5, 5), topology=wish, **spread).severity is Severity.OK, "two in a, three in b"
    assert ever(zones, nnodes=Nodes(6, 6), topology=wish, **spread).severity is Severity.ERROR


def test_spares_need_room_too_and_are_not_needed_to_begin() -> None:
    assert ever(H100, **gpu_job(2), spares=1).severity is Severity.OK
    found = ever(H100, **gpu_job(3), spares=1)
    assert (found.severity, "more than 3 of 3 nodes and 1 spare" in found.message) == (Severity.WARNING, True)
    begins = now(H100, [], **gpu_job(3), spares=1)
    assert (begins.severity, "room for 3 of 3 nodes and 1 spare now" in begins.message) == (Severity.OK, True)
    at_once = {"spares": 1, "queue": "q", "engine": Engine.PYTORCHJOB}
    held = now([*H100, a_node("h3", gpus=8)], [a_pod("h0", job="other", gpus=8)], **gpu_job(3), **at_once)
    assert (held.severity, "--nnodes 3 --spares 0 would" in held.hint) == (Severity.WARNING, True)


def test_room_that_is_free_is_room_now() -> None:
    assert now(H100, [a_pod("h0", job="other", gpus=8)], **gpu_job(2)).severity is Severity.OK


def test_the_job_whose_end_is_enough_is_named_and_a_smaller_beginning_offered() -> None:
    pods = [a_pod("h0", job="little", gpus=1), a_pod("h1", job="big", gpus=8), a_pod("h2", job="big", gpus=8)]
    found = now(H100, pods, **gpu_job(2))
    assert found.severity is Severity.WARNING
    assert found.message == "There is room for 0 of 2 nodes now. There is enough when team/big ends."
    one_free = now(H100, pods[1:], **gpu_job(2))
    assert "--nnodes 1:2 would start now" in one_free.hint


def test_several_jobs_have_to_end_where_none_is_enough() -> None:
    pods = [a_pod(f"h{n}", job=f"job{n}", gpus=8) for n in range(3)]
    assert "team/job0 and team/job1 have ended" in now(H100, pods, **gpu_job(2)).message


def test_what_does_not_end_by_itself_is_waited_for_in_vain_and_said_so() -> None:
    assert "does not end by itself" in now(H100, [a_pod("h0", gpus=8)], **gpu_job(3)).message


@pytest.mark.parametrize("state", [{"unschedulable": True}, {"taint": "node.kubernetes.io/not-ready:NoExecute"}])
def test_a_machine_that_is_away_for_now_is_no_room_now_and_not_never(state: dict[str, Any]) -> None:
    nodes = [*H100[:2], a_node("h2", gpus=8, **state)]
    assert ever(nodes, **gpu_job(3)).severity is Severity.OK
    found = now(nodes, [], **gpu_job(3))
    assert (found.severity, "(h2 is " in found.message) == (Severity.WARNING, True)


def test_pods_that_are_over_and_the_jobs_own_take_nothing() -> None:
    pods = [a_pod("h0", job="old", gpus=8, phase="Succeeded"), a_pod("h1", job="digits", gpus=8)]
    assert now(H100, pods, **gpu_job(3)).severity is Severity.OK


def test_an_elastic_job_begins_with_less_unless_kueue_lets_it_go_as_a_whole() -> None:
    pods = [a_pod("h0", job="other", gpus=8)]
    elastic = gpu_job(1) | {"nnodes": Nodes(1, 3)}
    assert "enough to begin" in now(H100, pods, **elastic).message
    assert now(H100, pods, **elastic, queue="q", engine=Engine.PYTORCHJOB).severity is Severity.WARNING
    assert now(H100, pods, **elastic, queue="q", engine=Engine.JOB).severity is Severity.OK


@pytest.mark.parametrize(("engine", "product"), [(Engine.JOBSET, "JobSet"), (Engine.TRAINJOB, "Kubeflow Trainer 2.3")])
def test_an_engine_that_drops_the_native_group_of_its_pods_is_refused(engine: Engine, product: str) -> None:
    subject = a_subject(gang=Gang.NATIVE, engine=engine)
    [found] = reaches_pods(subject, facts(has_scheduling_group=False))
    assert found.severity is Severity.ERROR
    assert "drops spec.schedulingGroup" in found.message
    assert product in found.hint
    [found] = reaches_pods(subject, facts(has_scheduling_group=True))
    assert found.severity is Severity.OK


def test_a_cluster_without_machines_is_called_so() -> None:
    assert ever([]).message == "The pod of the rendezvous store finds no machine: there are no machines."
