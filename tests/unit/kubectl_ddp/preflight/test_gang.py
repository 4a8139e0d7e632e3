"""Preflight checks: resources for all nodes of a job together, and gangs that its engine supports."""

from typing import Any

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.resources import check_native_gang, check_node_resources
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.values.program import Gang
from kubectl_ddp.values.quantity import NodeRange
from tests.support.cluster_facts import a_node, a_subject, facts


def machines(nodes: list[Object], *, grows: bool = False, **job: Any) -> Finding:
    [found] = check_node_resources(a_subject(**job), facts(nodes=nodes, grows=grows))
    return found


def gpu_job(nodes: int, gpus: int = 8, **more: Any) -> dict[str, Any]:
    return {"nnodes": NodeRange(nodes, nodes), "nproc": gpus, "gpus": gpus, **more}


H100 = [a_node(f"h{number}", gpus=8) for number in range(3)]


def test_nodes_for_which_the_machines_have_the_resources_pass_and_one_more_never_fits() -> None:
    assert machines(H100, **gpu_job(3)).severity is Severity.OK
    found = machines([*H100, a_node("small")], **gpu_job(4))
    assert found.severity is Severity.ERROR
    assert "needs 4 nodes at the same time, and the machines have the resources for 3" in found.message


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([a_node("a", gpus=4), a_node("b", gpus=2)], "no machine has 8 nvidia.com/gpu, the largest has 4"),
        ([a_node("a")], "no machine has 8 nvidia.com/gpu, the largest has 0"),
        ([a_node("a", gpus=8, cpu="1")], "no machine has 2 cpu, the largest has 1"),
        ([], "no machine has 8 nvidia.com/gpu, the largest has 0"),
    ],
)
def test_a_resource_of_which_no_machine_has_enough_is_named(nodes: list[Object], why: str) -> None:
    found = machines(nodes, **gpu_job(1))
    assert (found.severity, why in found.message) == (Severity.ERROR, True)


def test_on_machines_that_may_become_more_nothing_is_never() -> None:
    assert machines(H100, grows=True, **gpu_job(4)).severity is Severity.WARNING


def test_an_elastic_job_is_told_how_many_nodes_it_will_ever_have_and_spares_count() -> None:
    found = machines(H100, **gpu_job(2) | {"nnodes": NodeRange(2, 8)})
    assert (found.severity, "for more than 3 of 8 nodes" in found.message) == (Severity.WARNING, True)
    found = machines(H100, **gpu_job(3), spares=1)
    assert (found.severity, "more than 3 of 3 nodes and 1 spare" in found.message) == (Severity.WARNING, True)


@pytest.mark.parametrize("state", [{"unschedulable": True}, {"taint": "team=other:NoSchedule"}])
def test_what_only_the_scheduler_decides_refuses_no_job(state: dict[str, Any]) -> None:
    node = a_node("a", gpus=8, **state)
    assert machines([node], **gpu_job(1, node_selector={"disk": "ssd"})).severity is Severity.OK


@pytest.mark.parametrize(("engine", "product"), [(Engine.JOBSET, "JobSet"), (Engine.TRAINJOB, "Kubeflow Trainer 2.3")])
def test_an_engine_that_drops_the_native_group_of_its_pods_is_refused(engine: Engine, product: str) -> None:
    subject = a_subject(gang=Gang.NATIVE, engine=engine)
    [found] = check_native_gang(subject, facts(has_scheduling_group=False))
    assert found.severity is Severity.ERROR
    assert "drops spec.schedulingGroup" in found.message
    assert product in found.hint
    [found] = check_native_gang(subject, facts(has_scheduling_group=True))
    assert found.severity is Severity.OK
