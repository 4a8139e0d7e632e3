"""Nodes that will go: cordons, taints and conditions, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_controller.pod_move import CONDITIONS, TAINTS, drain_reason


def node(*taints: str, unschedulable: bool = False, **conditions: str) -> dict[str, Any]:
    listed = [{"type": kind, "status": value} for kind, value in conditions.items()]
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints], "unschedulable": unschedulable}
    return {"metadata": {"name": "a"}, "spec": spec, "status": {"conditions": listed}}


@pytest.mark.parametrize("taint", TAINTS)
def test_each_taint_of_the_table_dooms_a_node(taint: str) -> None:
    assert drain_reason(node("other", taint)).startswith(f"taint {taint}: ")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_of_the_table_dooms_a_node_while_it_is_true(condition: str) -> None:
    assert drain_reason(node(**{condition: "True"})).startswith(f"condition {condition}: ")
    assert not drain_reason(node(**{condition: "False"}))
    assert not drain_reason(node(**{condition: "Unknown"}))


def test_a_cordoned_node_will_go_and_others_stay() -> None:
    assert drain_reason(node(unschedulable=True)) == "cordoned"
    for fine in (node(), node("nvidia.com/gpu"), node(Ready="False"), node(MemoryPressure="True"), {}):
        assert not drain_reason(fine)


def test_further_taints_and_conditions_can_be_configured() -> None:
    more = {"example.com/repair": "configured"}
    assert drain_reason(node("example.com/repair"), more) == "taint example.com/repair: configured"
    assert drain_reason(node(**{"example.com/repair": "True"}), more) == "condition example.com/repair: configured"
