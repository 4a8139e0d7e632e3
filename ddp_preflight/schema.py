"""Schema of a node's inspection, and the result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ddp_trainer.net.network_interfaces import Interface

VERSION: Final = 1
"""Version of the documents that nodes exchange and that ``-o json`` prints; raised when the meaning of a field
changes.
"""

API_VERSION: Final = f"preflight.ddp/v{VERSION}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Result of resolving a name on this node."""

    name: str
    addresses: tuple[str, ...] = ()
    """Addresses in the resolver's order."""
    error: str = ""
    """Error of the resolver, without addresses."""
    hosts_line: str = ""
    """Line of /etc/hosts that defines the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Interface on which a communication library would listen."""

    interface: str = ""
    address: str = ""
    error: str = ""
    """Reason why it would find none."""
    why: str = ""
    """Rule that selects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """State of one GPU from NVML and the kernel's log; None or an empty text if unknown."""

    index: int
    name: str
    uuid: str = ""
    bus_id: str = ""
    compute_capability: tuple[int, ...] = ()
    """Major and minor version, as ``(9, 0)``."""
    memory_mib: int = 0
    memory_used_mib: int | None = None
    """MiB in use by all processes and by the driver."""
    is_lost: bool = False
    """True if it has fallen off the bus or is unreachable for another reason."""
    uncorrected_errors: int | None = None
    """Errors of its memory since the driver was loaded."""
    needs_reset: bool | None = None
    """True if a page or row is to be replaced at the next reset."""
    remap_failed: bool | None = None
    """True if a row of its memory could not be replaced."""
    recovery_action: str = ""
    """Action that the driver requests; ``none`` for no action."""
    fabric_state: str = ""
    """State in the fabric of NVSwitches: ``completed`` once joined, or ``not supported`` without a fabric."""
    fabric_faults: tuple[str, ...] = ()
    nvlinks: int | None = None
    nvlinks_up: int | None = None
    nvlink_errors: int | None = None
    """Replays and recoveries since the driver was loaded."""
    pcie_generation: int | None = None
    """Current generation; lower than the maximum while the GPU saves power."""
    pcie_generation_max: int | None = None
    """Maximum of GPU and slot together."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    performance_state: int | None = None
    """0 for full speed, up to 15; 32 for unknown."""
    slowdowns: tuple[str, ...] = ()
    """Reasons why its clocks are lower than requested, such as heat or power."""
    processes: tuple[int, ...] | None = None
    """Ids of the processes that compute on it and were not started by this launcher."""
    xids: tuple[int, ...] = ()
    """Driver errors of the last two hours."""
    unread: dict[str, str] = field(default_factory=dict)
    """Field that should be readable → its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions, packages, script and environment of this node."""

    versions: dict[str, str] = field(default_factory=dict)
    """Versions of ``python``, ``torch``, ``cuda``, ``nccl``, ``driver``, ``driver_cuda``; missing ones are left out."""
    packages: str = ""
    """Digest of the names and versions of all installed packages."""
    script: str = ""
    """Digest of the script; empty if none was named."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that torch and the communication libraries read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLimits:
    """Kernel limits of this process."""

    shared_memory_bytes: int
    """Size of /dev/shm; 0 if there is none."""
    shared_memory_free_bytes: int
    open_files: int
    """``ulimit -n``, the soft limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rdma:
    """Prerequisites of networks other than TCP."""

    locked_memory_bytes: int | None = None
    """``ulimit -l`` in bytes; None for no limit."""
    may_lock_memory: bool = False
    """True if the limit does not apply because this process has the capability CAP_IPC_LOCK."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Library → error of the loader; empty if it loads."""
    providers: int = 0
    """Installed drivers of libibverbs."""
    ports: dict[str, str] = field(default_factory=dict)
    """Device and port, as ``mlx5_0/1`` → state, as ``ACTIVE``."""
    device_files: int = 0
    """Number of files ``/dev/infiniband/uverbs*`` that this process may open."""
    huge_page_bytes: int = 0
    """Bytes of free 2 MiB pages that this container may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Offset of this node's clock from that of the meeting's host, in seconds."""

    offset: float = 0.0
    """Time of this node minus time of the host."""
    uncertainty: float = 0.0
    """Half of the shortest round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenPorts:
    """Ports on which this node waits for the probes of the others."""

    random: int = 0
    """Port chosen by the kernel."""
    rendezvous: int = 0
    """Rendezvous port; 0 if it is not available."""
    taken: str = ""
    """Reason why it is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of one node."""

    token: str
    """Unique per preflight process."""
    name: str
    node_rank: int | None
    """Node rank from the flags or the environment; None if unknown."""
    local_world_size: int
    machine: str
    """Equal for nodes that share one network stack, as on a laptop."""
    is_host: bool
    """True if the others meet here."""
    endpoint: Resolution
    endpoint_port: int
    hostname: Resolution
    reverse: dict[str, str]
    """Address of this node → its name; empty if it has none."""
    astray: dict[str, str]
    """Address of this node → addresses of its name, if they differ from it."""
    route: str
    """Source address of this node for traffic to the others; empty without a route."""
    interfaces: tuple[Interface, ...]
    gloo: Choice
    nccl: Choice
    listening: ListenPorts
    software: Software
    limits: KernelLimits
    gpus: tuple[Gpu, ...]
    gpu_note: str
    """Reason why the report lists no GPUs."""
    has_driver: bool
    """True if NVIDIA's library is installed, so that GPUs are expected."""
    rdma: Rdma
    clock: Clock = field(default_factory=Clock)
    version: int = VERSION


class ProbeKind(StrEnum):
    """Reason for probing an address."""

    ENDPOINT = "endpoint"
    """The rendezvous endpoint, on which possibly none of the nodes listens."""
    RENDEZVOUS = "rendezvous-port"
    RANDOM = "random-port"
    GLOO = "gloo"
    NCCL = "nccl"


class Outcome(StrEnum):
    """Result of a probe."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    STRANGER = "stranger"
    """Another program answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One attempted connection, as with ``nc -vz``."""

    source: str
    """Token of the node that connected."""
    target: str
    """Token of the expected node; empty for the endpoint."""
    purpose: ProbeKind
    address: str
    port: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Input of all checks."""

    reports: tuple[Report, ...]
    """Reports in the order of node ranks, then of names."""
    probes: tuple[Probe, ...] = ()
    expected: int = 1
    """Nodes of the run."""
    least: int = 1
    """Nodes with which the run can start."""
    newcomer: int | None = None
    """Rank of the node that wants to join a running group; None if all nodes start together."""
    trouble: str = ""
    """Reason why this node could not meet the others; empty if it did."""
    trouble_hint: str = ""


class Status(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    SKIP = "skip"
    """The check does not apply here; never a pass."""
    WARN = "warn"
    """The run can start, but may be slower or harder to debug."""
    FAIL = "fail"
    """The run will fail or hang."""

    @property
    def severity(self) -> int:
        """Number that is higher for a worse status."""
        return list(Status).index(self)


def max_status(statuses: Iterable[Status]) -> Status:
    """Return the worst status; ok if there are none.

    >>> max_status([Status.WARN, Status.FAIL, Status.SKIP])
    <Status.FAIL: 'fail'>
    """
    return max(statuses, key=lambda status: status.severity, default=Status.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or one check that was skipped."""

    status: Status
    node: str
    """Name of the node; empty for all nodes."""
    message: str
    """Observation, with the value."""
    hint: str = ""
    """Next step for the user."""
    check: str = ""
    """Name of the check, which :func:`named` sets."""


def named(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of one check, with its name."""
    return [replace(finding, check=check) for finding in findings]
