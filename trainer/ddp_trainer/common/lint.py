"""Rules about environment variables of NCCL and torch that keep a run from starting as requested, here or anywhere.

``ddp-launch`` applies them to its own environment, with the facts of its node. ``kubectl ddp render`` and ``preflight``
apply them to a job, beside rules about values alone (:mod:`kubectl_ddp.preflight.env_values`). Standard library only.

Each function has the rules about one topic. Rules that read devices or interfaces of the node report nothing where
these are unknown. ``docs/lint.md`` lists all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.constants import Env

ENV: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
TROUBLESHOOTING: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
TORCH_NCCL: Final = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
FLIGHT_RECORDER: Final = "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"
TORCH_DISTRIBUTED: Final = "https://docs.pytorch.org/docs/stable/distributed.html"


def env(name: str) -> str:
    """Return the URL of the variable's paragraph in NCCL's guide."""
    return f"{ENV}#{name.lower().replace('_', '-')}"


def issue(repository: str, number: int) -> str:
    """Return the URL of an issue on GitHub."""
    return f"https://github.com/{repository}/issues/{number}"


_YES: Final = frozenset({"1", "y", "yes", "t", "true", "on"})


def is_enabled(text: str) -> bool:
    """Return whether a switch is on."""
    return text.strip().lower() in _YES


def split_list(text: str, separator: str = ",") -> list[str]:
    """Return the non-empty words of a separated list.

    >>> split_list("a, b,,c")
    ['a', 'b', 'c']
    """
    return [word.strip() for word in text.split(separator) if word.strip()]


def number(text: str) -> int | None:
    """Return an integer in any base that C reads, or None for any other text.

    >>> [number(value) for value in ("22", "0x10", " -1 ", "010", "x", "")]
    [22, 16, -1, 8, None, None]
    """
    text = text.strip().lower()
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0") and digits.isdigit():
        text = text.replace("0", "0o", 1)
    try:
        return int(text, 0)
    except ValueError:
        return None


def is_one(text: str) -> bool:
    """Return whether a variable is the number 1."""
    return number(text) == 1


def is_zero(text: str) -> bool:
    """Return whether a variable is the number 0."""
    return number(text) == 0


def parse_selections(value: str) -> Iterator[tuple[bool, set[str]]]:
    """Yield whether the list is inverted and its words, for each function of ``NCCL_ALGO`` or ``NCCL_PROTO``.

    >>> list(parse_selections("Ring;allreduce:^Tree"))
    [(False, {'ring'}), (True, {'tree'})]
    """
    for part in split_list(value, ";"):
        chosen = part.rpartition(":")[2].strip()
        yield chosen.startswith("^"), {word.lower() for word in split_list(chosen.removeprefix("^"))}


Environment = Mapping[str, str]
"""Environment variables of a worker."""


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The run will fail, hang, or not be the one that was requested."""
    WARNING = "warning"
    """The run will be slow or fragile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts beside the variables; None for an unknown fact, about which no rule then reports anything."""

    interfaces: frozenset[str] | None = None
    """Network interfaces of the node."""
    route: str | None = None
    """Interface that routes to the other nodes."""
    rdma_devices: tuple[str, ...] | None = None
    """InfiniBand and RoCE devices of the node."""
    nodes: int | None = None
    """Largest number of nodes of the run."""
    nproc: int | None = None
    """Workers per node."""
    cpus: float | None = None
    """CPU cores per node."""
    is_one_machine: bool = False
    """True if all nodes share one network stack, as in a local job: its loopback reaches all of them."""

    @property
    def is_multi_host(self) -> bool:
        """True if the run has, or may have, nodes on other machines."""
        return self.nodes != 1 and not self.is_one_machine


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one rule."""

    rule: str
    """Id of the rule: N for NCCL, T for torch. An id is never reused for another rule."""
    name: str
    """Name of the variable."""
    message: str
    """The wrong value, and its consequence."""
    fix: str
    source: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.severity} {self.rule}: {self.message} {self.fix}"


Check = Callable[[Environment, Facts], Iterator[Finding]]
"""Rules about related variables."""


def run_checks(checks: Iterable[Check], environment: Environment, facts: Facts, ignored: str = "") -> list[Finding]:
    """Return the findings for one environment, errors first.

    Args:
        checks: Rules to apply.
        environment: The variables of a worker.
        facts: Facts about the node and the run.
        ignored: Ids of rules to leave out, separated by commas, or ``all``.
    """
    left_out = {word.upper() for word in split_list(ignored)}
    if "ALL" in left_out:
        return []
    found = [finding for check in checks for finding in check(environment, facts) if finding.rule not in left_out]
    return sorted(found, key=lambda finding: (finding.severity is not Severity.ERROR, finding.rule))


DESYNC_DEBUG: Final = "TORCH_NCCL_DESYNC_DEBUG"
DISTRIBUTED_DEBUG: Final = "TORCH_DISTRIBUTED_DEBUG"
USE_NCCL2: Final = "TORCH_DIST_USE_NCCL2"
"""``1`` makes the backend name ``nccl`` mean nccl2 in torch 2.14; ``0`` makes it mean the older backend in 2.15."""


def async_error_handling_overrides(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the set variables that make torch ignore ``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``.

    Source: the constructor of ``ProcessGroupNCCL``, which then takes ``SkipCleanUp``, its value 3.

    >>> async_error_handling_overrides({"TORCH_DISTRIBUTED_DEBUG": "detail", "TORCH_NCCL_DESYNC_DEBUG": "0"})
    ['TORCH_DISTRIBUTED_DEBUG']
    """
    is_set = {
        DISTRIBUTED_DEBUG: environ.get(DISTRIBUTED_DEBUG, "").upper() == "DETAIL",
        DESYNC_DEBUG: is_enabled(environ.get(DESYNC_DEBUG, "")),
    }
    return [name for name, value in is_set.items() if value]


_IFNAME: Final = "NCCL_SOCKET_IFNAME"
_TORCH_IFNAMES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_OR_DELETE: Final = "Correct it, or delete it."
_ALGORITHMS: Final = ("ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_PLUGINS: Final = ("gib", "aws libfabric", "libfabric", "ofi")
_PLUGIN_VARIABLES: Final = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "FI_EFA_")
_ELASTIC: Final = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def _check_interfaces(environment: Environment, facts: Facts) -> Iterator[Finding]:
    for name in (_IFNAME, *_TORCH_IFNAMES):
        words = split_list(environment.get(name, "").replace("=", ""))
        if words == ["lo"] and facts.is_multi_host:
            message = f"{name}={environment[name]} is the loopback, over which no other node can be reached."
            fix = "Name the interface that reaches the other nodes, or delete it."
            yield Finding("N08", name, message, fix, env(_IFNAME))
    value = environment.get(_IFNAME, "").strip()
    if facts.interfaces and value and not value.startswith("^"):
        wanted, is_exact = split_list(value.removeprefix("=")), value.startswith("=")
        if not any(have == word if is_exact else have.startswith(word) for word in wanted for have in facts.interfaces):
            has = ", ".join(sorted(facts.interfaces))
            message = f"{_IFNAME}={value} matches no interface of this node, which has {has}."
            yield Finding("N42", _IFNAME, message, "Correct it, or delete it: NCCL finds one.", env(_IFNAME))


def _check_torch_interfaces(environment: Environment, facts: Facts) -> Iterator[Finding]:
    for name in _TORCH_IFNAMES:
        value = environment.get(name, "")
        words, have = split_list(value), facts.interfaces
        if any(word.startswith(("^", "=")) for word in words):
            message = f"{name}={value} has NCCL's syntax, and gloo takes exact names of interfaces."
            fix = "Write the plain name, or names with commas, as many on every node."
            yield Finding("T08", name, message, fix, TORCH_DISTRIBUTED)
        elif have and (missing := [word for word in words if word not in have]):
            message = f"{name} names {missing[0]}, and the interfaces of this node are {', '.join(sorted(have))}."
            yield Finding("T19", name, message, _OR_DELETE, TORCH_DISTRIBUTED)
        elif have and words and facts.route and facts.route not in words and facts.is_multi_host and words != ["lo"]:
            message = f"{name}={value}, and the way to the other nodes is by {facts.route}."
            fix = "Make sure that they can reach it, or delete it: ddp-launch sets it to the interface on that way."
            yield Finding("T23", name, message, fix, TORCH_DISTRIBUTED, Severity.WARNING)


def _check_family(environment: Environment, _: Facts) -> Iterator[Finding]:
    family = environment.get("NCCL_SOCKET_FAMILY", "").strip().upper()
    for name in (str(Env.POD_IP), "MASTER_ADDR"):
        address = environment.get(name, "").strip()
        has = "AF_INET6" if ":" in address else "AF_INET" if address.replace(".", "").isdigit() else ""
        if has and family in {"AF_INET", "AF_INET6"} and family != has:
            message = (
                f"NCCL_SOCKET_FAMILY={family} is not the family of {name}={address}: ranks cannot reach each other."
            )
            source = issue("pytorch/pytorch", 131691)
            yield Finding("N26", "NCCL_SOCKET_FAMILY", message, "Delete it, or use the other.", source)


def _check_rdma(environment: Environment, facts: Facts) -> Iterator[Finding]:
    network = environment.get("NCCL_NET", "").strip().lower()
    devices = facts.rdma_devices
    if network == "ib" and is_one(environment.get("NCCL_IB_DISABLE", "")):
        message = "NCCL_NET=IB requires RDMA, and NCCL_IB_DISABLE=1 disables it: the start fails."
        yield Finding("N45", "NCCL_IB_DISABLE", message, "Delete one of them.", env("NCCL_IB_DISABLE"))
    if network == "ib" and devices == ():
        message = "NCCL_NET=IB requires RDMA, and this node has no device under /sys/class/infiniband."
        fix = "Request the device in the pod, or delete it to use TCP."
        yield Finding("N47", "NCCL_NET", message, fix, TROUBLESHOOTING)
    selection = environment.get("NCCL_IB_HCA", "").strip()
    names = [word.partition(":")[0] for word in split_list(selection.lstrip("^="))]
    if devices and names and not selection.startswith("^"):
        is_exact = selection.startswith("=")
        if not any(have == name if is_exact else have.startswith(name) for name in names for have in devices):
            message = f"NCCL_IB_HCA={selection} matches none of this node's devices, {', '.join(devices)}."
            yield Finding("N48", "NCCL_IB_HCA", message, _OR_DELETE, env("NCCL_IB_HCA"))


def _check_nccl(environment: Environment, _: Facts) -> Iterator[Finding]:
    if is_one(environment.get("NCCL_MNNVL_ENABLE", "")) and is_zero(environment.get("NCCL_CUMEM_ENABLE", "")):
        message = "NCCL_MNNVL_ENABLE=1 needs what NCCL_CUMEM_ENABLE=0 switches off, and the start fails."
        source = env("NCCL_MNNVL_ENABLE")
        yield Finding("N14", "NCCL_CUMEM_ENABLE", message, "Delete NCCL_CUMEM_ENABLE.", source)
    for name, known in (("NCCL_ALGO", _ALGORITHMS), ("NCCL_PROTO", _PROTOCOLS)):
        for _is_inverted, words in parse_selections(environment.get(name, "")):
            for word in sorted(words.difference(known)):
                message = (
                    f"{name} names {word}, and since 2.24 NCCL fails at an unknown word; there are {', '.join(known)}."
                )
                yield Finding("N34", name, message, _OR_DELETE, env("NCCL_ALGO"))
    network = environment.get("NCCL_NET", "").strip().lower()
    needs_plugin = network in _PLUGINS or any(name.startswith(_PLUGIN_VARIABLES) for name in environment)
    if needs_plugin and environment.get("NCCL_NET_PLUGIN", "").strip().lower() == "none":
        message = "NCCL_NET_PLUGIN=none keeps the plugin of this fabric from being loaded."
        yield Finding("N24", "NCCL_NET_PLUGIN", message, "Delete it.", env("NCCL_NET_PLUGIN"))


def _check_torch(environment: Environment, facts: Facts) -> Iterator[Finding]:
    workers = number(environment.get("LOCAL_WORLD_SIZE", "")) or 1
    if "TORCHELASTIC_RUN_ID" in environment and workers > 1:
        message = f"LOCAL_WORLD_SIZE={workers}: each worker of another launcher starts this one, as a separate run."
        yield Finding("T13", "LOCAL_WORLD_SIZE", message, "Start one launcher per node.", _ELASTIC)
    debug = environment.get(DISTRIBUTED_DEBUG, "").strip()
    if debug.upper() not in {"", "OFF", "INFO", "DETAIL"}:
        message = f"{DISTRIBUTED_DEBUG}={debug} is refused by torch when the ranks meet."
        fix = "Use OFF or INFO, or delete it."
        yield Finding("T20", DISTRIBUTED_DEBUG, message, fix, TORCH_DISTRIBUTED)
    visible, name = split_list(environment.get("CUDA_VISIBLE_DEVICES", "")), "CUDA_VISIBLE_DEVICES"
    if facts.nproc and visible and visible[0] != "-1" and len(visible) < facts.nproc:
        devices = ",".join(visible)
        message = (
            f"{name}={devices} has fewer devices than this node has workers ({facts.nproc}), and NCCL before 2.30 "
        )
        fix = f"Lower --nproc-per-node, or unset {name}. From 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share one."
        yield Finding("T21", name, f"{message}refuses two on one.", fix, issue("NVIDIA/nccl", 1716))


START_CHECKS: Final[tuple[Check, ...]] = (
    _check_interfaces,
    _check_torch_interfaces,
    _check_family,
    _check_rdma,
    _check_nccl,
    _check_torch,
)
