"""Rules about shared memory: /dev/shm is limited to 64 MiB without a volume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.constants import Path
from ddp_trainer.common.lint.model import Found, Severity
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.accessors import mapping, size_bytes
from kubectl_ddp.lint.container import Container
from kubectl_ddp.lint.model import PodRule, Pods, Workload

_SHM: Final = str(Path.SHARED_MEMORY)


def _volumes(pods: Pods) -> Iterator[tuple[Container, Mapping[str, Any]]]:
    """Yield the training containers, each with its volume at /dev/shm or an empty mapping."""
    for container in pods.training_containers:
        mount = container.mount_at(_SHM)
        yield container, pods.volume(mount.get("name")) if mount else {}


def _shares_the_host(pods: Pods) -> bool:
    return pods.spec.get("hostIPC") is True


def _missing(pods: Pods, *, at_least: int, at_most: int) -> Iterator[Found]:
    if _shares_the_host(pods):
        return
    for container, _ in _volumes(pods):
        if at_least <= container.gpus <= at_most and not container.mount_at(_SHM):
            yield Found(container.name, str(container.gpus))


def _none_for_multiple(pods: Pods, _: Workload) -> Iterator[Found]:
    yield from _missing(pods, at_least=2, at_most=10**6)


def _none_for_one(pods: Pods, _: Workload) -> Iterator[Found]:
    yield from _missing(pods, at_least=1, at_most=1)


def _on_disk(pods: Pods, _: Workload) -> Iterator[Found]:
    for container, volume in _volumes(pods):
        if "emptyDir" in volume and mapping(volume["emptyDir"]).get("medium") != "Memory":
            yield Found(container.name, str(volume.get("name")))


def _exceeds_memory_limit(pods: Pods, _: Workload) -> Iterator[Found]:
    for container, volume in _volumes(pods):
        size, limit = mapping(volume.get("emptyDir")).get("sizeLimit"), container.limits.get("memory")
        most, allowed = size_bytes(size), size_bytes(limit)
        if most is not None and allowed is not None and most >= allowed:
            yield Found(container.name, str(size), str(limit))


def _on_the_host(pods: Pods, _: Workload) -> Iterator[Found]:
    for container, volume in _volumes(pods):
        if path := mapping(volume.get("hostPath")).get("path"):
            yield Found(container.name, str(path))


RULES: Final = (
    PodRule(
        id="K01",
        severity=Severity.ERROR,
        looks_for="two GPUs or more, and no volume at `/dev/shm`",
        when=_none_for_multiple,
        message="Container {name} has {value} GPUs and no volume at /dev/shm, which is 64 MiB then: NCCL fails to "
        "extend it, data loaders die of a bus error.",
        fix="Mount an emptyDir with medium: Memory there.",
        source=sources.SHARED_MEMORY,
    ),
    PodRule(
        id="K02",
        looks_for="an emptyDir at `/dev/shm` without `medium: Memory`",
        when=_on_disk,
        message="The volume {value} at /dev/shm of container {name} is a directory on the machine's disk.",
        fix="Say medium: Memory.",
        source=sources.EMPTY_DIR,
    ),
    PodRule(
        id="K03",
        looks_for="a hostPath at `/dev/shm`",
        when=_on_the_host,
        message="Container {name} has the machine's {value} at /dev/shm: what one job leaves there fills it for all "
        "others.",
        fix="Use an emptyDir with medium: Memory.",
        source=sources.issue("llm-d/llm-d", 352),
    ),
    PodRule(
        id="K24",
        looks_for="one GPU, and no volume at `/dev/shm`",
        when=_none_for_one,
        message="Container {name} has no volume at /dev/shm, which is 64 MiB then: data loaders with workers die of a "
        "bus error.",
        fix="Mount an emptyDir with medium: Memory there.",
        source=sources.SHARED_MEMORY,
    ),
    PodRule(
        id="K25",
        looks_for="`/dev/shm` as large as the memory limit",
        when=_exceeds_memory_limit,
        message="The volume at /dev/shm of container {name} may grow to {value}, counts as its memory, and "
        "the limit of that is {detail}: a full one ends the container.",
        fix="Raise the limit, or lower the sizeLimit.",
        source=sources.EMPTY_DIR,
    ),
)
