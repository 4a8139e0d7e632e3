"""Rules about the start of ranks: values shared by several pods, and values that the operator sets as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.lint.model import Found, Severity
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.container import Container
from kubectl_ddp.lint.model import PodRule, Pods, Workload

_NODE_RANK: Final = re.compile(r"--(?:node|machine)[-_]rank[ =]+[\"']?(\d+)\b")
_LOOPBACK: Final = re.compile(
    r"--(rdzv[-_]endpoint|master[-_]addr)[ =]+[\"']?((?:localhost|127\.\d+\.\d+\.\d+)(?::\d+)?)"
)
_LOCAL_HOSTS: Final = ("localhost", "127.")
_ONE_NODE: Final = re.compile(r"--standalone\b|--nnodes[ =]+[\"']?1(?![\d:])")
_ETCD: Final = re.compile(r"--rdzv[-_]backend[ =]+[\"']?(etcd\S*)")
_OPERATORS: Final = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_ALIKE: Final = ("NCCL_", "FI_", "UCX_", "GLOO_", "LD_LIBRARY_PATH")


def _command_text(container: Container) -> str:
    return " ".join(container.command_line)


def _multiple_masters(pods: Pods, workload: Workload) -> Iterator[Found]:
    if workload.kind == "PyTorchJob" and pods.role == "Master" and pods.count != 1:
        yield Found("replicas", str(pods.count))


def _one_rank_for_all(pods: Pods, workload: Workload) -> Iterator[Found]:
    before = workload.training[: workload.training.index(pods)] if pods in workload.training else ()
    earlier = {rank for other in before for _, rank in _node_ranks(other)}
    for name, rank in _node_ranks(pods):
        if pods.count > 1:
            yield Found(name, rank, str(pods.count))
        elif rank in earlier:
            yield Found(name, rank, str(sum(each.count for each in workload.training)))


def _node_ranks(pods: Pods) -> Iterator[tuple[str, str]]:
    """Yield each node rank that a command or a variable sets, with what sets it."""
    for container in pods.training_containers:
        if match := _NODE_RANK.search(_command_text(container)):
            yield match[0].split("=")[0].split()[0], match[1]
        elif (rank := container.environment.get("PET_NODE_RANK", "")).isdecimal():
            yield "PET_NODE_RANK", rank


def _unnamed_container(pods: Pods, workload: Workload) -> Iterator[Found]:
    names = [container.name for container in pods.containers]
    if workload.kind == "PyTorchJob" and pods in workload.training and names and "pytorch" not in names:
        yield Found("name", ", ".join(names))


def _meets_at_itself(pods: Pods, workload: Workload) -> Iterator[Found]:
    if pods not in workload.training or sum(each.count for each in workload.training) < 2:
        return
    for container in pods.training_containers:
        text = _command_text(container)
        if match := None if _ONE_NODE.search(text) else _LOOPBACK.search(text):
            yield Found(f"--{match[1]}", match[2])
        for name in ("PET_RDZV_ENDPOINT", "MASTER_ADDR"):
            if (value := container.environment.get(name, "")).startswith(_LOCAL_HOSTS):
                yield Found(name, value)


def _overrides_operator_env(pods: Pods, workload: Workload) -> Iterator[Found]:
    for container in pods.training_containers if workload.kind == "PyTorchJob" else ():
        for name in _OPERATORS:
            if name in container.environment:
                yield Found(name, container.environment[name])


def _etcd(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        told = container.environment.get("PET_RDZV_BACKEND", "")
        match = _ETCD.search(_command_text(container))
        if match or told.startswith("etcd"):
            yield Found("--rdzv-backend", match[1].strip("\"'") if match else told)


def _role_mismatch(pods: Pods, workload: Workload) -> Iterator[Found]:
    first = workload.training[0] if workload.training else pods
    if pods is first or pods not in workload.training:
        return
    ours, theirs = _tuning(pods), _tuning(first)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield Found(name, _format_value(ours.get(name)), f"{_format_value(theirs.get(name))} in {first.role}")


def _tuning(pods: Pods) -> dict[str, str]:
    found = {name: value for each in pods.training_containers for name, value in each.environment.items()}
    return {name: value for name, value in found.items() if name.startswith(_ALIKE)}


def _format_value(value: str | None) -> str:
    return "not set" if value is None else value or "empty"


RULES: Final = (
    PodRule(
        id="K15",
        severity=Severity.ERROR,
        looks_for="a PyTorchJob whose Master is not one pod",
        when=_multiple_masters,
        message="The Master has {value} {name}, and rank 0 is one pod.",
        fix="Set it to 1; further nodes are Workers.",
        source=sources.PYTORCHJOB,
    ),
    PodRule(
        id="K32",
        severity=Severity.ERROR,
        looks_for="one node rank for several pods",
        when=_one_rank_for_all,
        message="{name} {value} is the same in all {detail} pods: two nodes of one rank, and the rendezvous hangs.",
        fix="Take it from the pod's index, or leave it out: torchrun and ddp-launch hand out ranks.",
        source=sources.issue("kubeflow/trainer", 1836),
    ),
    PodRule(
        id="K33",
        looks_for="variables of a PyTorchJob that its operator sets",
        when=_overrides_operator_env,
        message="{name}={value} is set by the operator as well, whose value comes last and counts.",
        source=sources.PYTORCHJOB,
    ),
    PodRule(
        id="K34",
        severity=Severity.ERROR,
        looks_for="etcd as rendezvous",
        when=_etcd,
        message="{name} {value} speaks only the v2 API, which etcd has removed.",
        fix="Use c10d, or ddp-launch with its store.",
        source=sources.TORCHRUN,
    ),
    PodRule(
        id="K35",
        looks_for="variables of NCCL, gloo or libfabric that differ between replicas",
        when=_role_mismatch,
        message="{name} is {value} here and {detail}: nodes that are tuned differently hang or fail in their first "
        "collective.",
        fix="Give all replicas the same.",
        source=sources.issue("NVIDIA/nccl", 1328),
    ),
    PodRule(
        id="K39",
        severity=Severity.ERROR,
        looks_for="pods of a PyTorchJob without a container named `pytorch`",
        when=_unnamed_container,
        message="No container has the {name} pytorch (only {value}), and the operator refuses the job.",
        fix="Name the container that trains pytorch.",
        source=sources.PYTORCHJOB,
    ),
    PodRule(
        id="K40",
        severity=Severity.ERROR,
        looks_for="a rendezvous of several pods at a loopback address",
        when=_meets_at_itself,
        message="{name} {value} is another place in each pod, so each waits for the others at its own.",
        fix="Name the first pod or a Service in front of it.",
        source=sources.TORCHRUN,
    ),
)
