"""The complete job specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_trainer.common.layout_range import LayoutRange
from kubectl_ddp.fabrics.registry import NONE
from kubectl_ddp.values.dns import DnsServer
from kubectl_ddp.values.engine import Engine, Gang
from kubectl_ddp.values.metrics_ingress import MONITORING, Reader
from kubectl_ddp.values.node_requirements import Rdma, Topology
from kubectl_ddp.values.parsers import Egress, EnvSource, SecretKey, Toleration
from kubectl_ddp.values.program import Program
from kubectl_ddp.values.quantity import Cpu, Memory, Nodes
from kubectl_ddp.values.volumes import Mount, SecretFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Complete job. :func:`kubectl_ddp.spec.rules.checked` tells if its values are consistent."""

    name: str
    """Name of the job, and prefix of all derived names."""
    program: Program
    """Program that every rank runs."""
    code: str | None = None
    """Local directory shipped with the job; it becomes the working directory and the base of a script's path."""
    args: tuple[str, ...] = ()
    """Arguments of the program."""
    nnodes: Nodes
    """Minimum and maximum number of nodes."""
    nproc: int
    """Processes per node, one rank each."""
    parallel: LayoutRange | None = None
    """Parallel layout of the ranks; None if the program decides."""
    gpus: int = 0
    """GPUs per node."""
    cpu: Cpu
    """Cores per node."""
    memory: Memory
    """Memory per node, including shared memory."""
    shm: Memory
    """Maximum size of /dev/shm, which data loaders use to pass batches; counts toward ``memory``."""
    image: str
    """Container image with ddp_trainer, torch and all imports of the program."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with literal values."""
    secret_env: Mapping[str, SecretKey] = field(default_factory=dict)
    """Environment variables with values from Secrets."""
    env_from: tuple[EnvSource, ...] = ()
    """Secrets and ConfigMaps whose entries all become variables."""
    max_restarts: int = 10
    """Maximum number of restarts of the workers after failures, over the whole job."""
    grace_seconds: int = 30
    """Seconds from SIGTERM to SIGKILL, to finish a step and save."""
    checkpoint_claim: str | None = None
    """Volume for checkpoints, shared by all nodes; without one, each node keeps its own copy."""
    deadline_seconds: int | None = None
    """Seconds after which the job is stopped and counts as failed."""
    ttl_seconds: int | None = None
    """Seconds that a finished job is kept."""
    namespace: str | None = None
    """Namespace; None for the context's."""
    priority: str | None = None
    """Priority class of the pods."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Required labels of nodes."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerated taints of nodes."""
    engine: Engine = Engine.AUTO
    """Kind of the job object on a cluster."""
    mounts: tuple[Mount, ...] = ()
    """Additional volumes."""
    secrets: tuple[SecretFiles, ...] = ()
    """Secrets whose entries become files."""
    queue: str | None = None
    """Queue of the job: Kueue's, or the gang scheduler's."""
    queue_priority: str | None = None
    """Kueue's priority class within the queue; independent of the pods' priority."""
    gang: Gang = Gang.NONE
    """Scheduler that starts either the minimum number of nodes together or none."""
    scheduler: str | None = None
    """Scheduler of the workers; None for the gang's or the cluster's default."""
    topology: tuple[Topology, ...] = ()
    """Placement constraints between nodes."""
    gpu_type: str | None = None
    """Product name of the GPUs."""
    mig: str | None = None
    """MIG profile of the slice that each node gets instead of a GPU."""
    rdma: Rdma | None = None
    """RDMA devices per node."""
    networks: tuple[str, ...] = ()
    """Additional networks by Multus name; repeat a name to attach it several times."""
    fabric: str = NONE
    """Fabric between the GPUs; several joined by ``+``."""
    metrics_from: tuple[Reader, ...] = (MONITORING,)
    """Additional sources that may scrape metrics, next to the API server."""
    egress: Egress = Egress.OPEN
    """Allowed egress of the pods."""
    dns: tuple[DnsServer, ...] = ()
    """DNS servers for closed egress; empty for :data:`kubectl_ddp.values.dns.DEFAULT`."""

    @property
    def largest_world(self) -> int:
        """Number of ranks at the maximum of nodes."""
        return self.nnodes.maximum * self.nproc
