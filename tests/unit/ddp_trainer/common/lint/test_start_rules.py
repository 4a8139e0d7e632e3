"""Rules about variables with which a run fails: what each one reports, and close cases that it accepts."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from ddp_trainer.common import lint
from ddp_trainer.common.lint import START_CHECKS, Facts, run_checks
from tests.support.lint_rules import Case, assert_reports, findings_of

ETH = {"interfaces": frozenset({"lo", "eth0", "eth1", "eth10"})}
ROUTE = ETH | {"route": "eth0"}
IB = {"rdma_devices": ("mlx5_0", "mlx5_1", "mlx5_10")}
NONE = {"rdma_devices": ()}

REPORTED: list[Case] = [
    ("N08", {"NCCL_SOCKET_IFNAME": "=lo"}, {}, "is the loopback"),
    ("N08", {"GLOO_SOCKET_IFNAME": "lo"}, {"nodes": 2}, "GLOO_SOCKET_IFNAME=lo is the loopback"),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth1"}, ROUTE, "=eth1, and the way to the other nodes is by eth0"),
    ("N14", {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"}, {}, "needs what NCCL_CUMEM_ENABLE=0 switches off"),
    ("N24", {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "gIB"}, {}, "keeps the plugin of this fabric"),
    ("N34", {"NCCL_ALGO": "Ring,Treee"}, {}, "NCCL_ALGO names treee"),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET6", "DDP_POD_IP": "10.0.0.1"}, {}, "not the family of DDP_POD_IP=10.0.0.1"),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET", "MASTER_ADDR": "fd00::1"}, {}, "not the family of MASTER_ADDR=fd00::1"),
    ("N42", {"NCCL_SOCKET_IFNAME": "=ens5"}, ETH, "matches no interface of this node, which has eth0, eth1, eth10, lo"),
    ("N42", {"NCCL_SOCKET_IFNAME": "=eth"}, ETH, "=eth matches no interface"),
    ("N45", {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE=1"),
    ("N47", {"NCCL_NET": "IB"}, NONE, "NCCL_NET=IB"),
    ("N48", {"NCCL_IB_HCA": "=mlx5_2"}, IB, "=mlx5_2 matches none of this node's devices"),
    ("T08", {"GLOO_SOCKET_IFNAME": "^lo"}, {}, "GLOO_SOCKET_IFNAME=^lo has NCCL's syntax"),
    (
        "T13",
        {"LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"},
        {},
        "each worker of another launcher starts this one",
    ),
    ("T19", {"GLOO_SOCKET_IFNAME": "ens5"}, ETH, "IFNAME names ens5, and the interfaces of this node are eth0"),
    ("T20", {"TORCH_DISTRIBUTED_DEBUG": "TRACE"}, {}, "TORCH_DISTRIBUTED_DEBUG=TRACE is refused"),
    ("T21", {"CUDA_VISIBLE_DEVICES": "0,1"}, {"nproc": 4}, "fewer devices than this node has workers (4)"),
]

SILENT: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("N08", {"NCCL_SOCKET_IFNAME": "lo"}, {"nodes": 1}),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth0"}, ROUTE),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth1"}, ROUTE | {"nodes": 1}),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth1"}, ETH),
    ("N08", {"GLOO_SOCKET_IFNAME": "lo"}, {"nodes": 2, "is_one_machine": True}),
    ("N14", {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "2"}, {}),
    ("N24", {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "IB"}, {}),
    ("N34", {"NCCL_ALGO": "ring,collnetdirect;allreduce:^tree,NVLSTree", "NCCL_PROTO": "LL,Simple"}, {}),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET", "DDP_POD_IP": "10.0.0.1", "MASTER_ADDR": "node-0"}, {}),
    ("N42", {"NCCL_SOCKET_IFNAME": "eth,ens"}, ETH),
    ("N42", {"NCCL_SOCKET_IFNAME": "^ens"}, ETH),
    ("N42", {"NCCL_SOCKET_IFNAME": "=ens5"}, {}),
    ("N45", {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}, {}),
    ("N47", {"NCCL_NET": "IB"}, {}),
    ("N48", {"NCCL_IB_HCA": "mlx5"}, IB),
    ("N48", {"NCCL_IB_HCA": "^mlx5_9"}, IB),
    ("T08", {"GLOO_SOCKET_IFNAME": "eth0,eth1"}, {}),
    ("T13", {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}, {}),
    ("T19", {"GLOO_SOCKET_IFNAME": "eth0"}, ETH),
    ("T20", {"TORCH_DISTRIBUTED_DEBUG": "detail"}, {}),
    ("T21", {"CUDA_VISIBLE_DEVICES": ""}, {"nproc": 4}),
    ("T21", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"nproc": 4}),
]


@pytest.mark.parametrize("case", REPORTED)
def test_a_rule_reports_the_value_and_what_to_do(case: Case) -> None:
    assert_reports(START_CHECKS, case)


@pytest.mark.parametrize(("rule", "environment", "facts"), SILENT)
def test_a_rule_is_silent_close_to_its_subject(rule: str, environment: dict[str, str], facts: dict[str, Any]) -> None:
    assert findings_of(START_CHECKS, rule, environment, facts) == []


def test_every_rule_is_in_both_tables() -> None:
    rules = set(re.findall(r'"([NT]\d\d)"', inspect.getsource(lint)))
    assert {case[0] for case in REPORTED} == {case[0] for case in SILENT} == rules


@pytest.mark.parametrize("rule", ["N42", "N47", "N48", "T19", "T23"])
def test_rules_that_need_the_node_are_silent_without_it(rule: str) -> None:
    cases = [variables for name, variables, *_ in REPORTED if name == rule]
    assert not any(findings_of(START_CHECKS, rule, variables, {"nodes": 2, "nproc": 8}) for variables in cases)


def test_errors_come_first_and_rules_can_be_left_out() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_NET": "IB", "TORCH_DISTRIBUTED_DEBUG": "x"}
    facts = Facts(**ROUTE, **NONE)
    assert [finding.rule for finding in run_checks(START_CHECKS, environment, facts)] == ["N47", "T20", "T23"]
    assert [finding.rule for finding in run_checks(START_CHECKS, environment, facts, "n47, T20")] == ["T23"]
    assert run_checks(START_CHECKS, environment, facts, "all") == []
