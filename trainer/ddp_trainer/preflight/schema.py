"""What a node knows of itself and of its way to the others; all of it travels as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ddp_trainer.net.network_interfaces import Interface

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
    """One GPU, as NVML and the kernel's log tell of it; None and empty texts for what they do not."""

    index: int
    name: str
    uuid: str = ""
    bus_id: str = ""
    memory_mib: int = 0
    memory_used_mib: int | None = None
    """By all processes, and by the driver for itself."""
    is_lost: bool = False
    """It has fallen off the bus, or cannot be reached for another reason."""
    uncorrected_errors: int | None = None
    """Of its memory since the driver was loaded."""
    needs_reset: bool | None = None
    """A page or row is to be replaced at the next reset."""
    remap_failed: bool | None = None
    """A row of its memory could not be replaced."""
    recovery_action: str = ""
    """What the driver wants to be done; ``none`` for nothing."""
    fabric_state: str = ""
    """Whether it has joined the fabric of NVSwitches: ``completed``, or ``not supported`` without one."""
    fabric_faults: tuple[str, ...] = ()
    nvlinks: int | None = None
    nvlinks_up: int | None = None
    nvlink_errors: int | None = None
    """Replays and recoveries since the driver was loaded."""
    pcie_generation: int | None = None
    """At this moment; less than the most where the GPU saves power."""
    pcie_generation_max: int | None = None
    """Of GPU and slot together."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    performance_state: int | None = None
    """0 for full speed, up to 15; 32 for unknown."""
    slowdowns: tuple[str, ...] = ()
    """Why its clocks are lower than they were asked to be, by heat or power."""
    processes: tuple[int, ...] | None = None
    """Process numbers of those that compute on it and were not started by this launcher."""
    xids: tuple[int, ...] = ()
    """Errors of the driver in the last two hours."""
    unread: dict[str, str] = field(default_factory=dict)
    """Field that should be there → why it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What runs on this node."""

    versions: dict[str, str] = field(default_factory=dict)
    """``python``, ``torch``, ``cuda``, ``nccl``, ``driver``, ``driver_cuda``; what is not there is left out."""
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
class Rdma:
    """What networks other than TCP need of a node."""

    locked_memory_bytes: int | None = None
    """``ulimit -l`` in bytes; None for no limit."""
    may_lock_memory: bool = False
    """Whether the limit does not hold for this process, which has the capability CAP_IPC_LOCK."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Library → the loader's error, empty where it can be loaded."""
    providers: int = 0
    """Drivers of libibverbs that are installed."""
    ports: dict[str, str] = field(default_factory=dict)
    """Device and port, as ``mlx5_0/1`` → state, as ``ACTIVE``."""
    device_files: int = 0
    """``/dev/infiniband/uverbs*`` that this process may open."""
    huge_page_bytes: int = 0
    """In free pages of 2 MiB that this container may take."""


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
    has_driver: bool
    """NVIDIA's library is here, so that GPUs are meant to be."""
    rdma: Rdma
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
