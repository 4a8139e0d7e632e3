"""Defaults that depend on other values: one rule per optional key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.spec.fields import FIELDS, PROGRAM_KEYS
from kubectl_ddp.spec.job_key import Kind, Origin
from kubectl_ddp.spec.serialization import make_program
from kubectl_ddp.spec.shared_presets import Shared, nothing_shared
from kubectl_ddp.values.program import default_job_name
from kubectl_ddp.values.quantity import Cpu, Memory

Values = dict[str, Any]
"""Parsed values by dotted key; maps are entry by entry."""

DEFAULT: Final = Origin(Kind.DEFAULT)
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class DefaultingContext:
    """Values from the environment of the command, as opposed to the user's settings."""

    image: str
    """Default image."""
    image_origin: Origin = DEFAULT
    name_suffix: str = ""
    """Suffix that makes a default name unique."""
    shared: Shared = nothing_shared
    """Function that loads shared presets; used for a preset that is not built in."""
    reads_files: bool = True
    """False if no value may be the name of a file that is read here."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Default for one key."""

    key: str
    make: Callable[[Values, DefaultingContext], tuple[Any, Origin] | None]


def _name(values: Values, surroundings: DefaultingContext) -> tuple[str, Origin]:
    key = next(key for key in PROGRAM_KEYS if key in values)
    name = default_job_name(make_program(key, values[key]))
    suffix = f"-{surroundings.name_suffix}" if surroundings.name_suffix else ""
    return name + suffix, Origin(Kind.RULE, key, "named after what it runs")


def _image(_values: Values, surroundings: DefaultingContext) -> tuple[str, Origin]:
    return surroundings.image, surroundings.image_origin


def _gpus(values: Values, _surroundings: DefaultingContext) -> tuple[Any, Origin]:
    if "mig" in values:
        return 1, Origin(Kind.RULE, "mig", "one slice is all that a process can use")
    return FIELDS["gpus"].default, DEFAULT


def _nproc(values: Values, _surroundings: DefaultingContext) -> tuple[int, Origin]:
    if values["gpus"]:
        return values["gpus"], Origin(Kind.RULE, "gpus", "one process per GPU")
    return 1, DEFAULT


def _cpu(values: Values, _surroundings: DefaultingContext) -> tuple[Cpu, Origin]:
    if values["gpus"]:
        return Cpu(3000 * values["gpus"]), Origin(
            Kind.RULE, "gpus", "3 cores per GPU: what the smallest usual GPU machines leave to a pod"
        )
    return Cpu(1000 * values["nproc"]), Origin(Kind.RULE, "nproc", "one core per process")


def _memory(values: Values, _surroundings: DefaultingContext) -> tuple[Memory, Origin]:
    if values["gpus"]:
        return Memory(12 * GIB * values["gpus"]), Origin(
            Kind.RULE, "gpus", "12 GiB per GPU: what the smallest usual GPU machines leave to a pod"
        )
    return Memory(GIB * (1 + values["nproc"])), Origin(
        Kind.RULE, "nproc", "1 GiB per process and one for /dev/shm and the agent"
    )


def _shm(values: Values, _surroundings: DefaultingContext) -> tuple[Memory, Origin]:
    size = max(1, values["memory"].size_bytes // 4)
    return Memory(size), Origin(
        Kind.RULE, "memory", "a quarter of the memory; 64 MiB, the default of containers, stops data loaders"
    )


def _threads(values: Values, _surroundings: DefaultingContext) -> tuple[str, Origin]:
    threads = max(1, values["cpu"].millis // 1000 // values["nproc"])
    reason = "cores per process; more threads than cores slow each other down"
    return str(threads), Origin(Kind.RULE, "cpu and nproc", reason)


RULES: Final[Sequence[Rule]] = (
    Rule("name", _name),
    Rule("image", _image),
    Rule("gpus", _gpus),
    Rule("nproc", _nproc),
    Rule("cpu", _cpu),
    Rule("memory", _memory),
    Rule("shm", _shm),
    Rule("env.OMP_NUM_THREADS", _threads),
)
"""Rules in order; each may use the results of earlier ones."""
