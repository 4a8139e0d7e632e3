"""Lint rules for RDMA and the network fabrics of clouds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.lint import sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity, where
from ddp_trainer.common.lint.values import is_one, number, split_list

_EFA_NETWORKS: Final = ("aws libfabric", "libfabric", "ofi")
_EFA_OBSOLETE: Final = ("FI_EFA_FORK_SAFE", "FI_EFA_ENABLE_SHM_TRANSFER", "FI_EFA_USE_DEVICE_RDMA")
_EFA_NEEDLESS: Final = ("RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE", "FI_PROVIDER", "NCCL_BUFFSIZE")
_FILES: Final = ("NCCL_TOPO_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH", "NCCL_TUNER_CONFIG_FILE")
_PLUGINS: Final = ("gib", *_EFA_NETWORKS)
_ANY_HOST: Final = frozenset({"NCCL_IB_DISABLE"})


def _network(environment: Environment) -> str:
    return environment.get("NCCL_NET", "").strip().lower()


def _is_efa(environment: Environment) -> bool:
    return (
        _network(environment) in _EFA_NETWORKS
        or environment.get("FI_PROVIDER", "").strip().lower() == "efa"
        or any(name.startswith("FI_EFA_") for name in environment)
    )


def _devices(environment: Environment) -> tuple[str, list[str]]:
    """Split ``^=mlx5_0:1,mlx5_1`` into its signs and its device names without ports."""
    value = environment.get("NCCL_IB_HCA", "").strip()
    names = value.lstrip("^=")
    return value[: len(value) - len(names)], [word.partition(":")[0] for word in split_list(names)]


@Rule(
    id="N09",
    looks_for="`NCCL_IB_HCA` without `=` whose names are beginnings of others",
    message="NCCL_IB_HCA takes {value} for a prefix, and {detail} match it too.",
    fix="Put = before the list, which makes its names exact.",
    source=sources.env("NCCL_IB_HCA"),
)
def _matches_more(environment: Environment, facts: Facts) -> Iterator[Found]:
    signs, names = _devices(environment)
    if "=" in signs:
        return
    for name in names:
        if facts.rdma_devices is None:
            more = f"{name}0 to {name}9" if re.search(r"_[1-9]$", name) else ""
        else:
            more = ", ".join(device for device in facts.rdma_devices if device.startswith(name) and device != name)
            more = more if name in facts.rdma_devices else ""
        if more:
            yield Found("NCCL_IB_HCA", name, more)


_FIXED_GID_INDEX: Final = Rule(
    when=where(lambda value: (index := number(value)) is not None and index >= 0, "NCCL_IB_GID_INDEX"),
    id="N10",
    looks_for="a fixed `NCCL_IB_GID_INDEX`",
    message="{name}={value}: since NCCL 2.21 it should not be set; with Multus the index differs from pod to pod.",
    fix="Delete it; with several GIDs use NCCL_IB_ADDR_RANGE.",
    source=sources.issue("k8snetworkplumbingwg/multus-cni", 1100),
)


_TRAFFIC_CLASS: Final = Rule(
    when=where(lambda value: number(value) not in {None, 0}, "NCCL_IB_TC"),
    id="N11",
    severity=Severity.INFO,
    looks_for="`NCCL_IB_TC`",
    message="{name}={value} is one fabric's own (OCI 41, Google 52, CoreWeave 96); others lose packets in it.",
    fix="Make sure that it is this fabric's.",
    source=sources.env("NCCL_IB_TC"),
)


_INFINITE_TIMEOUT: Final = Rule(
    when=where(lambda value: number(value) not in {None, *range(1, 32)}, "NCCL_IB_TIMEOUT"),
    id="N12",
    severity=Severity.ERROR,
    looks_for="`NCCL_IB_TIMEOUT` of 0 or from 32",
    message="{name}={value} means no timeout: a failure becomes a hang.",
    fix="Delete it: 20 is the default.",
    source=sources.env("NCCL_IB_TIMEOUT"),
)


@Rule(
    id="N20",
    looks_for="`NCCL_TOPO_FILE` and other files that are empty or missing",
    message="The file of {name}={value} {detail}.",
    fix="Mount it there, or delete the variable.",
    source=sources.env("NCCL_TOPO_FILE"),
)
def _no_file(environment: Environment, facts: Facts) -> Iterator[Found]:
    for name in _FILES:
        file = environment.get(name)
        if file is not None and (not file.strip() or (facts.exists and not facts.exists(file))):
            yield Found(name, file, "is empty" if not file.strip() else "is not there")


@Rule(
    id="N21",
    looks_for="variables of another fabric: `NCCL_IB_*` with EFA or sockets, `FI_*` without EFA",
    message="{name}={value} has no effect with {detail}.",
    source=sources.env("NCCL_NET"),
)
def _other_network_variable(environment: Environment, _: Facts) -> Iterator[Found]:
    network = _network(environment)
    without_verbs = network == "socket" or _is_efa(environment)
    for name in sorted(environment):
        if (without_verbs and name.startswith("NCCL_IB_") and name not in _ANY_HOST) or (
            network in {"ib", "socket", "gib"} and name.startswith("FI_")
        ):
            where = environment.get("NCCL_NET", "") or "EFA"
            yield Found(name, environment[name], where)


@Rule(
    id="N22",
    looks_for="variables that EFA once needed: `FI_EFA_USE_DEVICE_RDMA`, `RDMAV_FORK_SAFE` and others",
    message="{name}={value} is obsolete with EFA: its plugin sets what is needed.",
    source=sources.EFA,
)
def _old_efa(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in (*_EFA_OBSOLETE, *(_EFA_NEEDLESS if _is_efa(environment) else ())):
        if name in environment:
            yield Found(name, environment[name])


@Rule(
    id="N23",
    severity=Severity.INFO,
    looks_for="RDMA devices, and no `NCCL_NET` that insists on them",
    message="{name} is not set, so NCCL falls back to TCP without a warning if {detail} cannot be used.",
    fix="Set NCCL_NET to the network's name, such as IB, and a fallback fails at the start.",
    source=sources.env("NCCL_NET"),
    needs_node=True,
)
def _may_fallback_to_tcp(environment: Environment, facts: Facts) -> Iterator[Found]:
    if facts.rdma_devices and (facts.nodes or 1) > 1 and not environment.get("NCCL_NET"):
        yield Found("NCCL_NET", detail=", ".join(facts.rdma_devices))


@Rule(
    id="N24",
    severity=Severity.ERROR,
    looks_for="`NCCL_NET_PLUGIN=none` where the fabric is a plugin",
    message="{name}={value} keeps the plugin of this fabric from being loaded.",
    source=sources.env("NCCL_NET_PLUGIN"),
)
def _no_plugin(environment: Environment, _: Facts) -> Iterator[Found]:
    needs = _network(environment) in _PLUGINS or any(
        name.startswith(("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "FI_EFA_")) for name in environment
    )
    if needs and environment.get("NCCL_NET_PLUGIN", "").strip().lower() == "none":
        yield Found("NCCL_NET_PLUGIN", "none")


@Rule(
    id="N25",
    severity=Severity.INFO,
    looks_for="several RDMA devices, and differing numbers of them ignored",
    message="{name} is not 0, and nodes with differing numbers of devices hang instead of failing (NCCL 2.30).",
    fix="Set NCCL_IGNORE_NET_MISMATCH=0.",
    source=sources.issue("NVIDIA/nccl", 2428),
    needs_node=True,
)
def _mismatch_ignored(environment: Environment, facts: Facts) -> Iterator[Found]:
    several = facts.rdma_devices is not None and len(facts.rdma_devices) > 1 and (facts.nodes or 1) > 1
    if several and number(environment.get("NCCL_IGNORE_NET_MISMATCH", "")) != 0:
        yield Found("NCCL_IGNORE_NET_MISMATCH")


_SHARED_HOST_ID: Final = Rule(
    when=where(bool, "NCCL_HOSTID", given=lambda _, facts: facts.nodes != 1),
    id="N27",
    severity=Severity.ERROR,
    looks_for="`NCCL_HOSTID`, one for all nodes",
    message="{name}={value} makes all nodes look like one host, between which shared memory is tried.",
    source=sources.ENV,
)


_CUSTOM_COMM_ID: Final = Rule(
    when=where(bool, "NCCL_COMM_ID"),
    id="N28",
    severity=Severity.INFO,
    looks_for="`NCCL_COMM_ID`",
    message="{name}={value} has no part in a torch job, whose store hands out the id.",
    source=sources.ENV,
)


@Rule(
    id="N29",
    severity=Severity.INFO,
    looks_for="`UCX_*`",
    message="{name}={value} is for MPI; NCCL does not read it.",
    fix="Delete it, unless something else in the job uses UCX.",
    source="https://docs.coreweave.com (NCCL configuration reference)",
)
def _ucx_variable(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in sorted(environment):
        if name.startswith("UCX_"):
            yield Found(name, environment[name])


_SHORT_TIMEOUT: Final = Rule(
    when=where(lambda value: number(value) in range(1, 20), "NCCL_IB_TIMEOUT"),
    id="N44",
    severity=Severity.INFO,
    looks_for="`NCCL_IB_TIMEOUT` below the default",
    message="{name}={value} gives up sooner than NCCL's own 20 (since 2.23).",
    source=sources.env("NCCL_IB_TIMEOUT"),
)


_REQUESTED_IB_DISABLED: Final = Rule(
    when=where(is_one, "NCCL_IB_DISABLE", given=lambda environment, _: _network(environment) == "ib"),
    id="N45",
    severity=Severity.ERROR,
    looks_for="`NCCL_NET=IB` with `NCCL_IB_DISABLE=1`",
    message="NCCL_NET=IB requires RDMA, and {name}={value} disables it: the start fails.",
    fix="Delete one of them.",
    source=sources.env("NCCL_IB_DISABLE"),
)


@Rule(
    id="N46",
    severity=Severity.ERROR,
    looks_for="`NCCL_IB_DISABLE=1` on a node with RDMA devices",
    message="{name}={value} leaves {detail} idle, and all goes over TCP.",
    source=sources.env("NCCL_IB_DISABLE"),
    needs_node=True,
)
def _available_ib_disabled(environment: Environment, facts: Facts) -> Iterator[Found]:
    if facts.rdma_devices and number(environment.get("NCCL_IB_DISABLE", "")) == 1 and _network(environment) != "ib":
        yield Found("NCCL_IB_DISABLE", "1", ", ".join(facts.rdma_devices))


_REQUESTED_IB_MISSING: Final = Rule(
    when=where(lambda value: value.lower() == "ib", "NCCL_NET", given=lambda _, facts: facts.rdma_devices == ()),
    id="N47",
    severity=Severity.ERROR,
    looks_for="`NCCL_NET=IB` on a node without RDMA devices",
    message="{name}={value} requires RDMA, and this node has no device under /sys/class/infiniband.",
    fix="Request the device in the pod, or delete it to use TCP.",
    source=sources.TROUBLESHOOTING,
    needs_node=True,
)


@Rule(
    id="N48",
    severity=Severity.ERROR,
    looks_for="`NCCL_IB_HCA` that matches no device",
    message="{name}={value} matches none of this node's devices, {detail}.",
    fix="Correct it, or delete it.",
    source=sources.env("NCCL_IB_HCA"),
    needs_node=True,
)
def _no_such_device(environment: Environment, facts: Facts) -> Iterator[Found]:
    signs, names = _devices(environment)
    if not facts.rdma_devices or "^" in signs or not names:
        return
    is_exact = "=" in signs
    pairs = [(device, name) for device in facts.rdma_devices for name in names]
    if not any(device == name if is_exact else device.startswith(name) for device, name in pairs):
        yield Found("NCCL_IB_HCA", environment["NCCL_IB_HCA"], ", ".join(facts.rdma_devices))
