"""What a node knows of itself and of its way to the others; all of it travels as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ddp_trainer.interfaces import Interface

VERSION: Final = 1
"""Of the documents that nodes exchange and that ``-o json`` prints; raised when a field changes its meaning."""

API_VERSION: Final = f"preflight.ddp/v{VERSION}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a name stands for on this node."""

    name: str
    addresses: tuple[str, ...] = ()
    """In the resolver's order."""
    error: str = ""
    """The resolver's, when there are no addresses."""
    hosts_line: str = ""
    """The line of /etc/hosts that answers for the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The interface that a communication library would listen on."""

    interface: str = ""
    address: str = ""
    error: str = ""
    """Why it would find none."""
    why: str = ""
    """By which rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as nvidia-smi tells of it."""

    index: int
    name: str
    memory_mib: int
    uncorrected_errors: int
    """Of its memory since the driver was loaded."""
    needs_reset: bool
    """A page or row is to be replaced at the next reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What runs on this node."""

    versions: dict[str, str] = field(default_factory=dict)
    """``python``, ``torch``, ``cuda``, ``nccl``, ``driver``; what is not there is left out."""
    packages: str = ""
    """Digest of the names and versions of everything installed."""
    script: str = ""
    """Digest of the script's file; empty when none was named."""
    environment: dict[str, str] = field(default_factory=dict)
    """The variables that torch and the communication libraries read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kernel grants."""

    shared_memory_bytes: int
    """Size of /dev/shm; 0 where there is none."""
    shared_memory_free_bytes: int
    open_files: int
    """``ulimit -n``, the soft limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """This node's clock against that of the meeting's host; seconds."""

    offset: float = 0.0
    """Ours less theirs."""
    uncertainty: float = 0.0
    """Half of the shortest round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where this node waits for the probes of the others."""

    random: int = 0
    """A port that the kernel chose."""
    rendezvous: int = 0
    """The rendezvous port; 0 when it could not be had."""
    taken: str = ""
    """Why it could not be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One node."""

    token: str
    """Unique per preflight process."""
    name: str
    node_rank: int | None
    """As it was told; None when it was not."""
    local_world_size: int
    machine: str
    """The same for two nodes that share one network stack, as on a laptop."""
    is_host: bool
    """The others meet here."""
    endpoint: Resolution
    endpoint_port: int
    hostname: Resolution
    reverse: dict[str, str]
    """Address of ours → the name it leads back to, empty for none."""
    astray: dict[str, str]
    """Address of ours → where the name that it leads back to leads, when that is elsewhere."""
    route: str
    """Address that this node would send from to reach the others; empty when it has no way to them."""
    interfaces: tuple[Interface, ...]
    gloo: Choice
    nccl: Choice
    listening: Listening
    software: Software
    limits: Limits
    gpus: tuple[Gpu, ...]
    gpu_note: str
    """Why there are no GPUs to tell of."""
    has_nvidia_smi: bool
    clock: Clock = field(default_factory=Clock)
    version: int = VERSION


class Purpose(StrEnum):
    """Why an address is knocked at."""

    ENDPOINT = "endpoint"
    """Whoever listens there, perhaps none of the nodes."""
    RENDEZVOUS = "rendezvous-port"
    RANDOM = "random-port"
    GLOO = "gloo"
    NCCL = "nccl"


class Outcome(StrEnum):
    """What a knock led to."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    STRANGER = "stranger"
    """Somebody else answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One connection that was tried, as ``nc -vz`` would."""

    source: str
    """Token of the node that tried."""
    target: str
    """Token of the node that was meant; empty for the endpoint."""
    purpose: Purpose
    address: str
    port: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is judged."""

    reports: tuple[Report, ...]
    """In the order of their ranks, then of their names."""
    probes: tuple[Probe, ...] = ()
    expected: int = 1
    """Nodes that the run is to have."""
    least: int = 1
    """Nodes that it can begin with."""
    newcomer: int | None = None
    """Rank of the node that wants to join the others, which train already; None where all begin together."""
    trouble: str = ""
    """Why this node could not meet the others, when it could not."""
    trouble_hint: str = ""
