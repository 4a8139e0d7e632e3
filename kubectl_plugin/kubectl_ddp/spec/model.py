"""The job, in the user's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_trainer.common.parallel_dims import LayoutRange
from kubectl_ddp.fabrics.registry import NONE
from kubectl_ddp.spec import rules
from kubectl_ddp.spec.dns import DnsServer
from kubectl_ddp.spec.engine import Engine, Gang
from kubectl_ddp.spec.metrics_ingress import MONITORING, Reader
from kubectl_ddp.spec.mounts import Mount, SecretFiles
from kubectl_ddp.spec.node_requirements import Rdma, Topology
from kubectl_ddp.spec.program import Program
from kubectl_ddp.spec.quantity import Cpu, Memory, Nodes
from kubectl_ddp.spec.values import Egress, EnvSource, SecretKey, Toleration


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, complete and consistent: what contradicts itself raises UsageError when it is made."""

    name: str
    """Name of the job and the beginning of every name made for it."""
    program: Program
    """What every rank runs."""
    code: str | None = None
    """Directory of this machine that travels with the job; where its processes work, and a script's path begins."""
    args: tuple[str, ...] = ()
    """Words handed to the program."""
    nnodes: Nodes
    """How many nodes, at least and at best."""
    nproc: int
    """Processes per node, one rank each."""
    parallel: LayoutRange | None = None
    """How the ranks share one model; the program's own affair when ``None``."""
    gpus: int = 0
    """GPUs per node."""
    cpu: Cpu
    """Cores per node."""
    memory: Memory
    """Memory per node, shared memory included."""
    shm: Memory
    """What of it /dev/shm may take; data loaders hand batches over there."""
    image: str
    """Container image that holds ddp_trainer, torch and what the program imports."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, taken literally."""
    secret_env: Mapping[str, SecretKey] = field(default_factory=dict)
    """Environment variables whose values stay in Secrets."""
    env_from: tuple[EnvSource, ...] = ()
    """Secrets and ConfigMaps whose entries all become variables."""
    max_restarts: int = 10
    """How often the workers may fail and be started anew, counted over the whole job."""
    grace_seconds: int = 30
    """Seconds from SIGTERM to SIGKILL: the time to finish a step and save."""
    checkpoint_claim: str | None = None
    """Volume that all nodes share for checkpoints; without one each node keeps its own copy."""
    deadline_seconds: int | None = None
    """Seconds after which the job is stopped and counts as failed."""
    ttl_seconds: int | None = None
    """Seconds for which a finished job is kept."""
    namespace: str | None = None
    """Namespace; that of the context when ``None``."""
    priority: str | None = None
    """Priority class."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a machine must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of machines that the job does not mind."""
    engine: Engine = Engine.AUTO
    """The kind of object that it becomes on a cluster."""
    mounts: tuple[Mount, ...] = ()
    """Volumes beside the job's own."""
    secrets: tuple[SecretFiles, ...] = ()
    """Secrets whose entries become files."""
    queue: str | None = None
    """Queue that the job waits in: Kueue's, or that of the gang's scheduler."""
    queue_priority: str | None = None
    """Class of Kueue's by which the job goes before others in its queue; its pods' priority is another."""
    gang: Gang = Gang.NONE
    """Who starts the least number of nodes together, or none of them."""
    scheduler: str | None = None
    """Scheduler of the workers; the gang's own, or the cluster's, when ``None``."""
    topology: tuple[Topology, ...] = ()
    """Where the nodes are to lie to each other."""
    gpu_type: str | None = None
    """Product name of the GPUs."""
    mig: str | None = None
    """MIG profile of the slice that each node gets instead of a GPU."""
    rdma: Rdma | None = None
    """Network devices of each node."""
    networks: tuple[str, ...] = ()
    """Networks beside the cluster's own, as Multus names them; one may be attached several times."""
    fabric: str = NONE
    """Network between the GPUs, whose values the job has; several with ``+``."""
    metrics_from: tuple[Reader, ...] = (MONITORING,)
    """Who may read the metrics port, beside the API server."""
    egress: Egress = Egress.OPEN
    """What the pods may reach."""
    dns: tuple[DnsServer, ...] = ()
    """DNS servers that pods reach when egress is closed; those of :data:`kubectl_ddp.spec.dns.DEFAULT` when empty."""

    def __post_init__(self) -> None:
        rules.check(self)

    @property
    def largest_world(self) -> int:
        """Ranks when all nodes are there."""
        return self.nnodes.maximum * self.nproc
