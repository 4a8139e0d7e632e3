"""Fabric of a job: choice, added values, and conflicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.fabrics.catalog import (
    NONE,
    FabricRequirement,
    FabricValue,
    NodeFacts,
    Profile,
    Target,
    choose,
    effective_entries,
    nccl_of,
    profiles,
    too_new,
)
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.values.parsers import Raw
from kubectl_ddp.values.pod import Rdma
from kubectl_ddp.values.quantity import NodeRange

MACHINE: Final = "node.kubernetes.io/instance-type"
"""Node label with the cloud's machine type."""
ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
LISTS: Final = frozenset({"topology", "networks"})
"""Keys with lists as values; a fabric separates the items by commas."""
TARGETS: Final = frozenset(Target)


def facts_of(values: Mapping[str, Any]) -> NodeFacts:
    """Return the node facts from the values of a job, by dotted key."""
    labels = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("nodeSelector.")}
    return _facts(values["nnodes"], values["gpus"], labels, values.get("gpuType"), values.get("rdma"), values["image"])


def facts_of_job(spec: JobSpec) -> NodeFacts:
    """Return the node facts of a complete job."""
    return _facts(spec.nnodes, spec.gpus, spec.node_selector, spec.gpu_type, spec.rdma, spec.image)


def _facts(
    nodes: NodeRange, gpus: int, labels: Mapping[str, str], gpu_type: str | None, rdma: Rdma | None, image: str
) -> NodeFacts:
    return NodeFacts(
        nodes=nodes.maximum,
        gpus=gpus,
        machine=labels.get(MACHINE, ""),
        gpu_type=gpu_type or "",
        accelerator=labels.get(ACCELERATOR, ""),
        devices=rdma.resource if rdma else "",
        nccl=nccl_of(image),
    )


def match_profile(values: Mapping[str, Any]) -> tuple[str, Origin]:
    """Return the fabric that matches the values, with its origin."""
    choice = choose(facts_of(values))
    return choice.name, Origin(OriginKind.RULE, choice.key, choice.reason)


def layer(name: str, facts: NodeFacts) -> Layer:
    """Return the values that a fabric sets on job keys."""
    return {
        entry.key: Given(_raw(entry), Origin(OriginKind.FABRIC, name, entry.why))
        for entry in effective_entries(name, facts)
        if entry.target not in TARGETS
    }


def object_entries(spec: JobSpec) -> list[FabricValue]:
    """Return the values of the job's fabric without a job key: fields of the objects."""
    return [entry for entry in effective_entries(spec.fabric, facts_of_job(spec)) if entry.target in TARGETS]


def value_origins(spec: JobSpec) -> Iterator[tuple[str, str, Origin]]:
    """Yield key, value and origin of each entry of :func:`object_entries`."""
    for entry in object_entries(spec):
        yield entry.key, entry.value, Origin(OriginKind.FABRIC, spec.fabric, entry.why)


def has_entries(spec: JobSpec) -> bool:
    """Return True if the fabric adds anything to the job."""
    return bool(effective_entries(spec.fabric, facts_of_job(spec)))


def fabric_notes(spec: JobSpec) -> Iterator[str]:
    """Yield the fabric's requirements on the cluster and the image."""
    for need in _needs(spec):
        yield f"fabric {spec.fabric}: {need.message} ({need.source})"
    if spec.fabric == NONE and spec.gpus and spec.nnodes.maximum > 1:
        yield (
            "The network of the machines is unknown, so NCCL selects one, and falls back to TCP without a warning if "
            "RDMA cannot be used; --fabric names it."
        )


def fits_the_nodes(spec: JobSpec) -> None:
    """Check that the job has GPUs if and only if the fabric connects them, and that it does not exceed its size."""
    for profile in profiles(spec.fabric):
        if profile.has_gpus and not spec.gpus:
            raise UsageError(
                f"The fabric {profile.name} connects GPUs, and the job requests none.",
                hint="Add --gpus, or leave --fabric out.",
            )
        if not profile.has_gpus and spec.gpus:
            raise UsageError(
                f"The fabric {profile.name} is for jobs without GPUs, and this one requests {spec.gpus} per node.",
                hint="Leave one of them out.",
            )
        if profile.largest is not None and spec.nnodes.maximum > profile.largest:
            raise UsageError(
                f"The fabric {profile.name} ends at one machine, and the job may have {spec.nnodes.maximum} nodes.",
                hint="Name the network between the machines, or leave --fabric out.",
            )


def validate_rdma_devices(spec: JobSpec) -> None:
    """Check that the job requests the RDMA devices of its fabric; pods have access only to requested devices."""
    for profile in profiles(spec.fabric):
        if not profile.devices or spec.nnodes.maximum == 1:
            continue
        if spec.rdma is None:
            raise UsageError(
                f"The fabric {profile.name} needs RDMA devices, and the job requests none.", hint=rdma_hint(profile)
            )
        if not spec.rdma.resource.startswith(profile.devices):
            raise UsageError(
                f"rdma requests '{spec.rdma.resource}', which is not a device of the fabric {profile.name}.",
                hint=rdma_hint(profile),
            )


def override_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each value of the user that differs from the fabric's."""
    values = {f"env.{name}": value for name, value in spec.env.items()}
    values |= {f"nodeSelector.{name}": value for name, value in spec.node_selector.items()}
    values |= {"rdma": str(spec.rdma)} if spec.rdma else {}
    for entry in effective_entries(spec.fabric, facts_of_job(spec)):
        value = values.get(entry.key, entry.value)
        if value != entry.value:
            yield warning(
                f"{entry.key} is '{value}', and the fabric {spec.fabric} says '{entry.value}': {entry.reason}.",
                "Yours is taken; leave it out, or say --fabric none.",
            )


def env_conflict_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each variable of the user that conflicts with the fabric."""
    set_by_it = {entry.key: entry.value for entry in effective_entries(spec.fabric, facts_of_job(spec))}
    variables: dict[str, str | None] = {**spec.env, **dict.fromkeys(spec.secret_env)}
    for profile in profiles(spec.fabric):
        for name, value in variables.items():
            found = [refusal for refusal in profile.refusals if refusal.matches(name, value)][:1]
            for refusal in found if f"env.{name}" not in set_by_it else ():
                setting = name if value is None else f"{name}={value}"
                yield warning(
                    f"{setting} contradicts the fabric {profile.name}: {refusal.reason}.",
                    "Yours is taken; leave it out, or name another fabric.",
                )


def critical_requirement_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each requirement without which the job fails at its start or runs slowly."""
    for need in _needs(spec):
        if need.is_grave:
            yield warning(f"fabric {spec.fabric}: {need.message}")


def nccl_version_warnings(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each value that the image's NCCL does not support."""
    facts = facts_of_job(spec)
    for entry in too_new(spec.fabric, facts):
        nccl = ".".join(map(str, facts.nccl or ()))
        yield warning(
            f"The fabric {spec.fabric} sets {entry.name} from NCCL {entry.since} on, and the image '{spec.image}' says "
            f"{nccl}: it is left out.",
            "Use an image with a newer one.",
        )


def _raw(entry: FabricValue) -> Raw:
    words: Sequence[str] = entry.value.split(",")
    return list(words) if entry.key in LISTS else entry.value


def _needs(spec: JobSpec) -> Iterator[FabricRequirement]:
    variables = {*spec.env, *spec.secret_env}
    for profile in profiles(spec.fabric):
        yield from (need for need in profile.needs if need.unless not in variables)


def rdma_hint(profile: Profile) -> str:
    """Return a hint with the request for a fabric's devices."""
    known = ", ".join(f"{devices} on {machine}" for machine, devices in profile.devices_by_machine_type.items())
    name = profile.devices[0] if not profile.devices[0].endswith("/") else f"{profile.devices[0]}NAME"
    more = f" {known}; or name the machine with --node-selector {MACHINE}=TYPE" if known else ""
    return f"Say --rdma {name}=COUNT.{more}{'.' if more else ''}"
