"""Lint rules for environment variables that make a job slow or fragile, or that nothing reads.

:func:`environment_findings` applies them to a job, with those that ``ddp-launch`` applies again in the pod
(:mod:`ddp_trainer.common.lint`). ``docs/lint.md`` lists all rules.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common import lint
from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import (
    START_CHECKS,
    Check,
    Environment,
    Facts,
    Finding,
    Severity,
    is_enabled,
    is_one,
    is_zero,
    number,
    run_checks,
    split_list,
)
from kubectl_ddp.preflight import env_values
from kubectl_ddp.preflight.env_values import VALUE_CHECKS, forces_ll128
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util import finding
from kubectl_ddp.util.yaml_text import read_yaml

_CLOSE: Final = 0.85
_IFNAME: Final = "NCCL_SOCKET_IFNAME"
_NEVER_MEANT: Final = ("lo", "docker", "veth", "cali", "cni", "pod-id-link")
_LEVELS: Final = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")
_DEBUG_LEVELS: Final = ("", "VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE")
_MANY_RANKS: Final = 8
_EFA: Final = ("aws libfabric", "libfabric", "ofi")
_EFA_OBSOLETE: Final = ("FI_EFA_FORK_SAFE", "FI_EFA_ENABLE_SHM_TRANSFER", "FI_EFA_USE_DEVICE_RDMA")
_EFA_NEEDLESS: Final = ("RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE", "FI_PROVIDER", "NCCL_BUFFSIZE")
_TORCH_PREFIXES: Final = ("TORCH_NCCL_", "TORCH_FR_", "TORCH_DIST", "TORCH_GLOO_", "GLOO_", "TP_", "PYTORCH_ALLOC")
_ALLOCATORS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_RECORDER_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_RECORDER_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_LEFT_ON: Final = (
    *("CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_DESYNC_DEBUG", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    "TORCH_DISTRIBUTED_DEBUG",
)


def environment_findings(spec: JobSpec, *, is_one_machine: bool = False) -> Iterator[finding.Finding]:
    """Yield findings about the environment variables of a job.

    Args:
        spec: The job.
        is_one_machine: True if all nodes are on one machine, as in a local job.
    """
    cpus = spec.cpu.millis / 1000
    facts = Facts(nodes=spec.nnodes.maximum, nproc=spec.nproc, cpus=cpus, is_one_machine=is_one_machine)
    for found in run_checks(JOB_CHECKS, spec.env, facts, spec.env.get(Env.LINT_IGNORE, "")):
        severity = finding.Severity(found.severity)
        yield finding.Finding(severity, found.message, found.fix, (found.source,), found.name, found.rule)


@functools.cache
def known_names() -> dict[str, Any]:
    """Return the content of ``env_names.yaml``, with its lists of words as lists."""
    names = read_yaml(Path(__file__).with_name("env_names.yaml"))
    return {key: value.split() if isinstance(value, str) else value for key, value in names.items()}


def _warn(rule: str, name: str, message: str, source: str, fix: str = "Delete it.") -> Finding:
    return Finding(rule, name, message, fix, source, Severity.WARNING)


def _check_names(environment: Environment, _: Facts) -> Iterator[Finding]:
    variables = [name for name in environment if name.startswith(("NCCL_", *_TORCH_PREFIXES))]
    names = known_names() if variables else {}
    for name in variables:
        if name in names["gone"]:
            what, _dot, fix = names["gone"][name].partition(". ")
            yield _warn("N02", name, f"{name} is {what}.", lint.ENV, fix)
        elif name.startswith("NCCL_"):
            if name[5:] not in names["nccl"] and not name.startswith(tuple(names["others"])):
                near = difflib.get_close_matches(name, [f"NCCL_{known}" for known in names["nccl"]], 1, _CLOSE)
                fix = f"Did you mean {near[0]}?" if near else "Delete it."
                source = "https://github.com/NVIDIA/nccl (the names that src/ looks up, 2.30.7)"
                yield _warn("N01", name, f"NCCL ignores {name}, which it does not know.", source, fix)
        elif name not in names["torch"]:
            # Only with a suggestion: torch adds names, and a newer name is not an error.
            for near_name in difflib.get_close_matches(name, names["torch"], 1, _CLOSE):
                message, fix = f"torch does not know {name}.", f"Did you mean {near_name}?"
                yield _warn("T17", name, message, lint.TORCH_NCCL, fix)


def _check_allocator_keys(environment: Environment, _: Facts) -> Iterator[Finding]:
    for name in _ALLOCATORS:
        # Commas within the brackets of roundup_power2_divisions:[256:1,512:2] do not separate keys.
        for pair in split_list(re.sub(r"\[[^\]]*\]", "", environment.get(name, ""))):
            key = pair.partition(":")[0].strip()
            if key not in (known := known_names()["allocator"]):
                near = difflib.get_close_matches(key, known, n=1)
                message = f"{name} has the key {key}, and torch refuses keys that it does not know."
                yield _warn(
                    "T18", name, message, env_values.TORCH_CUDA, f"Did you mean {near[0]}?" if near else "Delete it."
                )


def _check_ranges(environment: Environment, _: Facts) -> Iterator[Finding]:
    names = known_names() if any(name.startswith("NCCL_") for name in environment) else {"ranges": {}, "choices": {}}
    for name, (least, most) in names["ranges"].items():
        value = environment.get(name, "").strip()
        if value and ((found := number(value)) is None or not least <= found <= most):
            message = f"{name}={value} is out of range: it may be {least} to {most}."
            yield Finding("N31", name, message, "Correct it, or delete it.", lint.ENV)
    for name, choices in names["choices"].items():
        value = environment.get(name, "").strip()
        if name in _LEVELS and number(value) is not None:
            message = f"{name}={value} is a number, whose meaning has changed between versions; above 4 all mean SYS."
            yield _warn("N06", name, message, lint.env("NCCL_P2P_LEVEL"), "Use LOC, NVL, PIX, PXB, PHB or SYS.")
        elif value and value.upper() not in choices:
            message = f"{name}={value} is none of {', '.join(choices)}."
            yield Finding("N32", name, message, "Correct it, or delete it.", lint.ENV)


def _check_disabled_features(environment: Environment, _: Facts) -> Iterator[Finding]:
    for name, what in (("NCCL_P2P_DISABLE", "NVLink and PCI peer access"), ("NCCL_SHM_DISABLE", "shared memory")):
        if is_one(environment.get(name, "")):
            message = f"{name}=1 switches off {what} between the GPUs of a node, and all goes another, slower way."
            yield _warn("N04", name, message, lint.env("NCCL_P2P_DISABLE"))
    # The recipe for TCPX on GCP sets exactly these variables. Another rule reports LL128.
    if not any(name.startswith("NCCL_GPUDIRECTTCPX_") for name in environment):
        for name in ("NCCL_ALGO", "NCCL_PROTO"):
            if (value := environment.get(name, "")) and not forces_ll128(value):
                message = f"{name}={value} overrides NCCL's choice at every size, and fails where it is unavailable."
                yield _warn("N05", name, message, lint.env("NCCL_ALGO"))
    if is_zero(environment.get("NCCL_NVLS_ENABLE", "")) and not is_one(environment.get(Env.SURVIVE_ON_NCCL, "")):
        message = (
            "NCCL_NVLS_ENABLE=0 gives up NVLink SHARP, to work around NCCL before 2.18.5 or a broken fabric manager."
        )
        fix = "Delete it, and mend the fabric manager. Keep it where processes outlive NCCL groups."
        yield _warn("N13", "NCCL_NVLS_ENABLE", message, f"{lint.issue('NVIDIA/nccl', 1672)} ({env_values.NVRX})", fix)
    if is_one(environment.get("NCCL_MNNVL_ENABLE", "")):
        message = "NCCL_MNNVL_ENABLE=1 makes the start fail (Cuda failure 800) on every node without an IMEX channel."
        fix = "Leave it at 2, which finds out, or claim a ComputeDomain for the pods."
        yield _warn("N15", "NCCL_MNNVL_ENABLE", message, lint.issue("NVIDIA/nccl", 1925), fix)


def _check_network(environment: Environment, _: Facts) -> Iterator[Finding]:
    value = environment.get(_IFNAME, "").strip()
    excluded = [word.removeprefix("=") for word in split_list(value.removeprefix("^"))]
    missing = [name for name in _NEVER_MEANT if not any(name.startswith(word) for word in excluded)]
    if value.startswith("^") and missing:
        message = f"{_IFNAME}={value} replaces NCCL's own exclusions, so {', '.join(missing)} become eligible."
        source = "https://github.com/aws-samples/aws-do-eks/issues/54"
        yield _warn("N07", _IFNAME, message, source, "Name the interface, as in =eth0, or delete it.")
    devices = environment.get("NCCL_IB_HCA", "").strip()
    for word in [] if devices.startswith(("=", "^=")) else split_list(devices.removeprefix("^")):
        if re.search(r"_[1-9]$", device := word.partition(":")[0]):
            message = f"NCCL_IB_HCA takes {device} for a prefix, and {device}0 to {device}9 match it too."
            fix = "Put = before the list, which makes its names exact."
            yield _warn("N09", "NCCL_IB_HCA", message, lint.env("NCCL_IB_HCA"), fix)
    index = number(environment.get("NCCL_IB_GID_INDEX", ""))
    if index is not None and index >= 0:
        message = (
            f"NCCL_IB_GID_INDEX={index}: since NCCL 2.21 it should not be set; with Multus it differs between pods."
        )
        source = lint.issue("k8snetworkplumbingwg/multus-cni", 1100)
        fix = "Delete it; with several GIDs use NCCL_IB_ADDR_RANGE."
        yield _warn("N10", "NCCL_IB_GID_INDEX", message, source, fix)
    is_efa = environment.get("NCCL_NET", "").strip().lower() in _EFA or (
        environment.get("FI_PROVIDER", "").strip().lower() == "efa"
        or any(name.startswith("FI_EFA_") for name in environment)
    )
    for name in (*_EFA_OBSOLETE, *(_EFA_NEEDLESS if is_efa else ())):
        if name in environment:
            message = f"{name}={environment[name]} is obsolete with EFA: its plugin sets what is needed."
            yield _warn("N22", name, message, env_values.EFA)
    host = environment.get("NCCL_RAS_ADDR", "").strip().rpartition(":")[0].strip("[]")
    if host not in {"", "localhost", "127.0.0.1", "::1"}:
        message = (
            f"NCCL_RAS_ADDR={environment['NCCL_RAS_ADDR']} lets anyone who reaches it query the run without a password."
        )
        fix = "Use localhost and a port of the job's own."
        yield _warn("N43", "NCCL_RAS_ADDR", message, lint.env("NCCL_RAS_ADDR"), fix)


def _check_logging(environment: Environment, facts: Facts) -> Iterator[Finding]:
    level, file = environment.get("NCCL_DEBUG", "").strip().upper(), environment.get("NCCL_DEBUG_FILE", "")
    ranks = (facts.nodes or 1) * (facts.nproc or 1)
    if level not in _DEBUG_LEVELS:
        message = f"NCCL_DEBUG={level} is not a level, so NCCL reports nothing."
        fix = "Use WARN; the others are VERSION, INFO and TRACE."
        yield _warn("N16", "NCCL_DEBUG", message, lint.env("NCCL_DEBUG"), fix)
    elif level in {"INFO", "TRACE"} and ranks > _MANY_RANKS and not file:
        message = f"NCCL_DEBUG={level} fills the log with the lines of {ranks} ranks."
        yield _warn("N38", "NCCL_DEBUG", message, lint.env("NCCL_DEBUG"), "Use WARN, or set NCCL_DEBUG_FILE.")
    if file and not file.startswith("/dev/std") and ("~" in file or "%h" not in file or "%p" not in file):
        message = (
            f"NCCL_DEBUG_FILE={file} is one file for several processes, or has a ~ that is not expanded: logs are lost."
        )
        fix = "Use a whole path with %h and %p in it, such as /var/run/ddp/nccl.%h.%p."
        yield _warn("N18", "NCCL_DEBUG_FILE", message, lint.env("NCCL_DEBUG_FILE"), fix)


def _check_torch(environment: Environment, facts: Facts) -> Iterator[Finding]:
    if is_enabled(environment.get("TORCH_NCCL_BLOCKING_WAIT", "")):
        name = "TORCH_NCCL_BLOCKING_WAIT"
        message = f"{name} makes every wait block the process, so compute and communication no longer overlap."
        yield _warn("T04", name, message, lint.TORCH_NCCL)
    sizes = [name for name in _RECORDER_SIZES if number(environment.get(name, "")) not in {None, 0}]
    if sizes and not any(environment.get(name) for name in _RECORDER_FILES):
        message = f"{sizes[0]} records, and the dump goes to the home directory, which ends with the container."
        fix = "Set TORCH_FR_DUMP_TEMP_FILE to a place on a volume, such as /var/run/ddp/trace_."
        yield _warn("T05", sizes[0], message, lint.FLIGHT_RECORDER, fix)
    threads = number(environment.get("OMP_NUM_THREADS", "").partition(",")[0]) or 0
    # One thread is the minimum, even on a node with less than one core.
    if threads > 1 and facts.cpus and threads * (facts.nproc or 1) > max(1, facts.cpus):
        message = f"OMP_NUM_THREADS={threads} is too much for {facts.nproc or 1} workers and {facts.cpus:g} cores."
        source = "https://docs.pytorch.org/docs/stable/elastic/run.html"
        yield _warn("T09", "OMP_NUM_THREADS", message, source, "Use the cores divided by the workers.")
    if is_one(environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")):
        message = "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams in one queue; DDP and FSDP lose their overlap."
        fix = "Delete it, unless the job needs Megatron's tensor parallelism."
        source = lint.issue("pytorch/torchtitan", 1147)
        yield _warn("T11", "CUDA_DEVICE_MAX_CONNECTIONS", message, source, fix)
    for name in _LEFT_ON:
        value = environment.get(name, "").strip()
        if is_enabled(value) or (name == "TORCH_DISTRIBUTED_DEBUG" and value.upper() == "DETAIL"):
            message = f"{name}={value} is a debugging switch that every step pays for."
            yield _warn("T22", name, message, lint.TORCH_NCCL, "Delete it when the mistake is found.")


JOB_CHECKS: Final[tuple[Check, ...]] = (
    *START_CHECKS,
    *VALUE_CHECKS,
    _check_names,
    _check_allocator_keys,
    _check_ranges,
    _check_disabled_features,
    _check_network,
    _check_logging,
    _check_torch,
)
"""All rules, with those of the launcher."""
