"""Lint rules for variables with which a run fails, hangs or computes wrong results.

Each function has the rules about one topic. Rules that read devices or interfaces of the node report nothing where
these are unknown. ``docs/lint.md`` lists all rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import sources
from ddp_trainer.common.lint.model import Check, Environment, Facts, Finding, Severity
from ddp_trainer.common.lint.values import forces_ll128, is_one, is_yes, is_zero, number, parse_selections, split_list
from ddp_trainer.common.nccl_variables import DISTRIBUTED_DEBUG, USE_NCCL2, variables_against_survival

_IFNAME: Final = "NCCL_SOCKET_IFNAME"
_TORCH_IFNAMES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LARGEST_IB_TIMEOUT: Final = 31
_MOST_SOCKETS: Final = 64
_ALGORITHMS: Final = ("ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_PLUGINS: Final = ("gib", "aws libfabric", "libfabric", "ofi")
_PLUGIN_VARIABLES: Final = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "FI_EFA_")
_OR_DELETE: Final = "Correct it, or delete it."
_ELASTIC: Final = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def _check_interfaces(environment: Environment, facts: Facts) -> Iterator[Finding]:
    for name in (_IFNAME, *_TORCH_IFNAMES):
        words = split_list(environment.get(name, "").replace("=", ""))
        if words == ["lo"] and facts.has_other_machines:
            message = f"{name}={environment[name]} is the loopback, over which no other node can be reached."
            fix = "Name the interface that reaches the other nodes, or delete it."
            yield Finding("N08", name, message, fix, sources.env(_IFNAME))
    value = environment.get(_IFNAME, "").strip()
    if facts.interfaces and value and not value.startswith("^"):
        wanted, is_exact = split_list(value.removeprefix("=")), value.startswith("=")
        if not any(have == word if is_exact else have.startswith(word) for word in wanted for have in facts.interfaces):
            has = ", ".join(sorted(facts.interfaces))
            message = f"{_IFNAME}={value} matches no interface of this node, which has {has}."
            yield Finding("N42", _IFNAME, message, "Correct it, or delete it: NCCL finds one.", sources.env(_IFNAME))


def _check_torch_interfaces(environment: Environment, facts: Facts) -> Iterator[Finding]:
    for name in _TORCH_IFNAMES:
        value = environment.get(name, "")
        words, have = split_list(value), facts.interfaces
        if any(word.startswith(("^", "=")) for word in words):
            message = f"{name}={value} has NCCL's syntax, and gloo takes exact names of interfaces."
            fix = "Write the plain name, or names with commas, as many on every node."
            yield Finding("T08", name, message, fix, sources.TORCH_DISTRIBUTED)
        elif have and (missing := [word for word in words if word not in have]):
            message = f"{name} names {missing[0]}, and the interfaces of this node are {', '.join(sorted(have))}."
            yield Finding("T19", name, message, _OR_DELETE, sources.TORCH_DISTRIBUTED)
        elif (
            have and words and facts.route and facts.route not in words and facts.has_other_machines and words != ["lo"]
        ):
            message = f"{name}={value}, and the way to the other nodes is by {facts.route}."
            fix = "Make sure that they can reach it, or delete it: ddp-launch sets it to the interface on that way."
            yield Finding("T23", name, message, fix, sources.TORCH_DISTRIBUTED, Severity.WARNING)


def _check_sockets(environment: Environment, facts: Facts) -> Iterator[Finding]:
    threads = number(environment.get("NCCL_SOCKET_NTHREADS", "1")) or 1
    per_thread = number(environment.get("NCCL_NSOCKS_PERTHREAD", "1")) or 1
    if threads * per_thread > _MOST_SOCKETS:
        name = "NCCL_SOCKET_NTHREADS"
        message = (
            f"{name}={threads} times NCCL_NSOCKS_PERTHREAD={per_thread} is more than the 64 sockets that NCCL allows."
        )
        yield Finding("N19", name, message, "Lower one; 4 and 4 suit 100 Gb/s.", sources.env(name))
    family = environment.get("NCCL_SOCKET_FAMILY", "").strip().upper()
    for name in (str(Env.POD_IP), "MASTER_ADDR"):
        address = environment.get(name, "").strip()
        has = "AF_INET6" if ":" in address else "AF_INET" if address.replace(".", "").isdigit() else ""
        if has and family in {"AF_INET", "AF_INET6"} and family != has:
            message = (
                f"NCCL_SOCKET_FAMILY={family} is not the family of {name}={address}: ranks cannot reach each other."
            )
            source = sources.issue("pytorch/pytorch", 131691)
            yield Finding("N26", "NCCL_SOCKET_FAMILY", message, "Delete it, or use the other.", source)
    if (host := environment.get("NCCL_HOSTID", "").strip()) and facts.nodes != 1:
        message = f"NCCL_HOSTID={host} makes all nodes look like one host, between which shared memory is tried."
        yield Finding("N27", "NCCL_HOSTID", message, "Delete it.", sources.ENV)


def _check_rdma(environment: Environment, facts: Facts) -> Iterator[Finding]:
    network = environment.get("NCCL_NET", "").strip().lower()
    is_disabled, devices = is_one(environment.get("NCCL_IB_DISABLE", "")), facts.rdma_devices
    timeout = number(environment.get("NCCL_IB_TIMEOUT", ""))
    if timeout is not None and not 1 <= timeout <= _LARGEST_IB_TIMEOUT:
        message = f"NCCL_IB_TIMEOUT={timeout} means no timeout: a failure becomes a hang."
        source = sources.env("NCCL_IB_TIMEOUT")
        yield Finding("N12", "NCCL_IB_TIMEOUT", message, "Delete it: 20 is the default.", source)
    needs_plugin = network in _PLUGINS or any(name.startswith(_PLUGIN_VARIABLES) for name in environment)
    if needs_plugin and environment.get("NCCL_NET_PLUGIN", "").strip().lower() == "none":
        message = "NCCL_NET_PLUGIN=none keeps the plugin of this fabric from being loaded."
        yield Finding("N24", "NCCL_NET_PLUGIN", message, "Delete it.", sources.env("NCCL_NET_PLUGIN"))
    if is_disabled and network == "ib":
        message = "NCCL_NET=IB requires RDMA, and NCCL_IB_DISABLE=1 disables it: the start fails."
        yield Finding("N45", "NCCL_IB_DISABLE", message, "Delete one of them.", sources.env("NCCL_IB_DISABLE"))
    elif is_disabled and devices:
        message = f"NCCL_IB_DISABLE=1 leaves {', '.join(devices)} idle, and all goes over TCP."
        yield Finding("N46", "NCCL_IB_DISABLE", message, "Delete it.", sources.env("NCCL_IB_DISABLE"))
    if network == "ib" and devices == ():
        message = "NCCL_NET=IB requires RDMA, and this node has no device under /sys/class/infiniband."
        fix = "Request the device in the pod, or delete it to use TCP."
        yield Finding("N47", "NCCL_NET", message, fix, sources.TROUBLESHOOTING)
    selection = environment.get("NCCL_IB_HCA", "").strip()
    names = [word.partition(":")[0] for word in split_list(selection.lstrip("^="))]
    if devices and names and not selection.startswith("^"):
        is_exact = selection.startswith("=")
        if not any(have == name if is_exact else have.startswith(name) for name in names for have in devices):
            message = f"NCCL_IB_HCA={selection} matches none of this node's devices, {', '.join(devices)}."
            yield Finding("N48", "NCCL_IB_HCA", message, _OR_DELETE, sources.env("NCCL_IB_HCA"))


def _check_nccl_values(environment: Environment, _: Facts) -> Iterator[Finding]:
    if is_one(environment.get("NCCL_MNNVL_ENABLE", "")) and is_zero(environment.get("NCCL_CUMEM_ENABLE", "")):
        message = "NCCL_MNNVL_ENABLE=1 needs what NCCL_CUMEM_ENABLE=0 switches off, and the start fails."
        source = sources.env("NCCL_MNNVL_ENABLE")
        yield Finding("N14", "NCCL_CUMEM_ENABLE", message, "Delete NCCL_CUMEM_ENABLE.", source)
    protocols = environment.get("NCCL_PROTO", "")
    if forces_ll128(protocols):
        message = f"NCCL_PROTO={protocols} forces LL128, which corrupts data on platforms that do not support it."
        fix = "Delete it: where LL128 is supported NCCL uses it."
        yield Finding("N33", "NCCL_PROTO", message, fix, sources.env("NCCL_PROTO"))
    for name, known in (("NCCL_ALGO", _ALGORITHMS), ("NCCL_PROTO", _PROTOCOLS)):
        for _is_inverted, words in parse_selections(environment.get(name, "")):
            for word in sorted(words.difference(known)):
                message = (
                    f"{name} names {word}, and since 2.24 NCCL fails at an unknown word; there are {', '.join(known)}."
                )
                yield Finding("N34", name, message, _OR_DELETE, sources.env("NCCL_ALGO"))
    for what in ("CTAS", "NCHANNELS", "P2P_NCHANNELS"):
        least, most = (number(environment.get(f"NCCL_{side}_{what}", "")) for side in ("MIN", "MAX"))
        if least is not None and most is not None and least > most:
            message = f"NCCL_MIN_{what}={least} is more than NCCL_MAX_{what}={most} allows."
            yield Finding("N35", f"NCCL_MIN_{what}", message, "Delete both.", sources.env("NCCL_MIN_CTAS"))


def _check_error_handling(environment: Environment, _: Facts) -> Iterator[Finding]:
    handling, faults = number(environment.get(_HANDLING, "")), {}
    if is_yes(environment.get(Env.SURVIVE_ON_NCCL, "")):
        # Then the launcher's hang watch is the timeout. The trainer itself sets 0 where that watch kills ranks.
        undoing = [*variables_against_survival(environment), *([_HANDLING] if handling else [])]
        faults = dict.fromkeys(undoing, "torch ends a process that could outlive its group")
        if is_yes(environment.get(USE_NCCL2, "")):
            faults[USE_NCCL2] = "nccl2 refuses DDP_SURVIVE_ON_NCCL=1, and 0 selects the older backend"
    elif handling in {0, 1, 2}:
        lost = "a lost peer becomes an endless hang" if handling == 0 else "the flight recorder's dump is lost"
        faults = {_HANDLING: lost}
    for name, fault in faults.items():
        fix = "Use torch's default; leave it out with DDP_SURVIVE_ON_NCCL=1."
        source = sources.issue("pytorch/pytorch", 121055)
        yield Finding("T02", name, f"{name}={environment[name]}: {fault}.", fix, source, Severity.WARNING)


def _check_torch(environment: Environment, facts: Facts) -> Iterator[Finding]:
    if "LOCAL_RANK" in environment and "TORCHELASTIC_RUN_ID" in environment:
        message = "LOCAL_RANK is set: this launcher runs inside a worker of another one, so each worker starts its own."
        yield Finding("T13", "LOCAL_RANK", message, "Start one launcher per node.", _ELASTIC, Severity.WARNING)
    debug = environment.get(DISTRIBUTED_DEBUG, "").strip()
    if debug.upper() not in {"", "OFF", "INFO", "DETAIL"}:
        message = f"{DISTRIBUTED_DEBUG}={debug} is refused by torch when the ranks meet."
        fix = "Use OFF or INFO, or delete it."
        yield Finding("T20", DISTRIBUTED_DEBUG, message, fix, sources.TORCH_DISTRIBUTED)
    visible, name = split_list(environment.get("CUDA_VISIBLE_DEVICES", "")), "CUDA_VISIBLE_DEVICES"
    if facts.nproc and visible and visible[0] != "-1" and len(visible) < facts.nproc:
        devices = ",".join(visible)
        message = (
            f"{name}={devices} has fewer devices than this node has workers ({facts.nproc}), and NCCL before 2.30 "
        )
        fix = f"Lower --nproc-per-node, or unset {name}. From 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share one."
        yield Finding("T21", name, f"{message}refuses two on one.", fix, sources.issue("NVIDIA/nccl", 1716))


START_CHECKS: Final[tuple[Check, ...]] = (
    _check_interfaces,
    _check_torch_interfaces,
    _check_sockets,
    _check_rdma,
    _check_nccl_values,
    _check_error_handling,
    _check_torch,
)
