"""Lint rules for interfaces and addresses, which select the network of the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity, where
from ddp_trainer.common.lint.values import number, split_list

_IFNAME: Final = "NCCL_SOCKET_IFNAME"
_TORCHS: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NEVER_MEANT: Final = ("lo", "docker", "veth", "cali", "cni", "pod-id-link")


def _seen(interfaces: frozenset[str]) -> str:
    return ", ".join(sorted(interfaces)) or "none"


@Rule(
    id="N07",
    looks_for="`NCCL_SOCKET_IFNAME=^...` that leaves out what NCCL would exclude by itself",
    message="{name}={value} replaces NCCL's own exclusions, so {detail} become eligible where a node has them.",
    fix="Name the interface, as in =eth0, or delete it.",
    source="https://github.com/aws-samples/aws-do-eks/issues/54",
)
def _incomplete_exclusion(environment: Environment, _: Facts) -> Iterator[Found]:
    value = environment.get(_IFNAME, "").strip()
    if value.startswith("^"):
        excluded = [word.removeprefix("=") for word in split_list(value[1:])]
        missing = [name for name in _NEVER_MEANT if not any(name.startswith(word) for word in excluded)]
        if missing:
            yield Found(_IFNAME, value, ", ".join(missing))


@Rule(
    id="N08",
    severity=Severity.ERROR,
    looks_for="the loopback as interface of nodes on more than one machine",
    message="{name}={value} is the loopback, over which no other node can be reached.",
    fix="Name the interface that reaches the other nodes, or delete it.",
    source=sources.env("NCCL_SOCKET_IFNAME"),
)
def _loopback_interface(environment: Environment, facts: Facts) -> Iterator[Found]:
    if facts.nodes == 1 or facts.is_one_machine:
        return
    for name in (_IFNAME, *_TORCHS):
        if [word.removeprefix("=") for word in split_list(environment.get(name, ""))] == ["lo"]:
            yield Found(name, environment[name])


@Rule(
    id="N19",
    severity=Severity.ERROR,
    looks_for="`NCCL_SOCKET_NTHREADS` times `NCCL_NSOCKS_PERTHREAD` above 64",
    message="{name}={value} times NCCL_NSOCKS_PERTHREAD={detail} is more than the 64 sockets that NCCL allows.",
    fix="Lower one; 4 and 4 suit 100 Gb/s, and AWS and GCP are detected.",
    source=sources.env("NCCL_SOCKET_NTHREADS"),
)
def _too_many_sockets(environment: Environment, _: Facts) -> Iterator[Found]:
    threads = number(environment.get("NCCL_SOCKET_NTHREADS", "1")) or 1
    each = number(environment.get("NCCL_NSOCKS_PERTHREAD", "1")) or 1
    if threads * each > 64:
        yield Found("NCCL_SOCKET_NTHREADS", str(threads), str(each))


@Rule(
    id="N26",
    severity=Severity.ERROR,
    looks_for="`NCCL_SOCKET_FAMILY` of the other family than the pod's or the master's address",
    message="{name}={value} is not the family of {detail}, so the ranks cannot reach each other.",
    fix="Delete it, or use the other.",
    source=sources.issue("pytorch/pytorch", 131691),
)
def _other_family(environment: Environment, _: Facts) -> Iterator[Found]:
    family = environment.get("NCCL_SOCKET_FAMILY", "").strip().upper()
    for name in (str(Env.POD_IP), "MASTER_ADDR"):
        address = environment.get(name, "").strip()
        has = "AF_INET6" if ":" in address else "AF_INET" if address.replace(".", "").isdigit() else ""
        if has and family in {"AF_INET", "AF_INET6"} and family != has:
            yield Found("NCCL_SOCKET_FAMILY", family, f"{name}={address}")


@Rule(
    id="N41",
    looks_for="an interface name that is the beginning of another's",
    message="{name}={value} is a prefix, and {detail} match it too.",
    fix="Write ={value} for that one alone.",
    source=sources.env("NCCL_SOCKET_IFNAME"),
    needs_node=True,
)
def _ambiguous_prefix(environment: Environment, facts: Facts) -> Iterator[Found]:
    if facts.interfaces is None or environment.get(_IFNAME, "").startswith(("^", "=")):
        return
    for word in split_list(environment.get(_IFNAME, "")):
        more = sorted(name for name in facts.interfaces if name.startswith(word) and name != word)
        if word in facts.interfaces and more:
            yield Found(_IFNAME, word, ", ".join(more))


@Rule(
    id="N42",
    severity=Severity.ERROR,
    looks_for="`NCCL_SOCKET_IFNAME` that matches no interface",
    message="{name}={value} matches no interface of this node, which has {detail}.",
    fix="Correct it, or delete it: NCCL finds one.",
    source=sources.env("NCCL_SOCKET_IFNAME"),
    needs_node=True,
)
def _missing_interface(environment: Environment, facts: Facts) -> Iterator[Found]:
    value = environment.get(_IFNAME, "").strip()
    if facts.interfaces is None or not value or value.startswith("^"):
        return
    is_exact = value.startswith("=")
    wanted = split_list(value.removeprefix("="))
    if not any(name == word if is_exact else name.startswith(word) for word in wanted for name in facts.interfaces):
        yield Found(_IFNAME, value, _seen(facts.interfaces))


@Rule(
    id="N43",
    looks_for="`NCCL_RAS_ADDR` that other machines reach",
    message="{name}={value} lets anyone who can reach the address query the run without a password.",
    fix="Use localhost and a port of the job's own.",
    source=sources.env("NCCL_RAS_ADDR"),
)
def _exposed_ras_address(environment: Environment, _: Facts) -> Iterator[Found]:
    host = environment.get("NCCL_RAS_ADDR", "").strip().rpartition(":")[0].strip("[]")
    if host and host not in {"localhost", "127.0.0.1", "::1"}:
        yield Found("NCCL_RAS_ADDR", environment["NCCL_RAS_ADDR"])


_PATTERN_FOR_TORCH: Final = Rule(
    when=where(lambda value: any(word.startswith(("^", "=")) for word in split_list(value)), *_TORCHS),
    id="T08",
    severity=Severity.ERROR,
    looks_for="`^` or `=` in `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME`",
    message="{name}={value} has NCCL's syntax, and gloo takes exact names of interfaces.",
    fix="Write the plain name, or names with commas, as many on every node.",
    source=sources.TORCH_DISTRIBUTED,
)


@Rule(
    id="T23",
    looks_for="`GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME` other than the interface on the way to the other nodes",
    message="{name}={value}, and the way to the other nodes is by {detail}.",
    fix="Make sure that they can reach it, or delete it: ddp-launch sets it to the interface on that way.",
    source=sources.TORCH_DISTRIBUTED,
    needs_node=True,
)
def _unrouted_interface(environment: Environment, facts: Facts) -> Iterator[Found]:
    """Report interfaces that exist but do not route to the other nodes. Another rule reports missing ones."""
    if facts.route is None or facts.interfaces is None or facts.nodes == 1 or facts.is_one_machine:
        return
    for name in _TORCHS:
        named = split_list(environment.get(name, ""))
        if named and facts.route not in named and set(named) <= facts.interfaces and named != ["lo"]:
            yield Found(name, environment[name], facts.route)


@Rule(
    id="T19",
    severity=Severity.ERROR,
    looks_for="`GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME` that this node does not have",
    message="{name} names {value}, and the interfaces of this node are {detail}.",
    fix="Correct it, or delete it.",
    source=sources.TORCH_DISTRIBUTED,
    needs_node=True,
)
def _missing_torch_interface(environment: Environment, facts: Facts) -> Iterator[Found]:
    for name in _TORCHS:
        for word in split_list(environment.get(name, "")):
            if facts.interfaces is not None and word not in facts.interfaces and not word.startswith(("^", "=")):
                yield Found(name, word, _seen(facts.interfaces))
