"""Names that the plugin and the pod share: variables, labels, ports, paths and exit codes.

The plugin renders these names into manifests and reads them back from pods. The launcher, the trainer and the
aggregator use the same definitions. Standard library only, so that both sides can import it cheaply. A name that only
one side uses does not belong here. Names of metrics are in :mod:`~ddp_trainer.common.metric_names`, and classes of
time in :mod:`~ddp_trainer.common.time_classes`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

GROUP: Final = "ddp.dev"
"""Prefix of this project's labels and annotations."""

FIELD_MANAGER: Final = "kubectl-ddp"


class Env(StrEnum):
    """Environment variables of a pod. torchrun's variables (``RANK``, ``PET_*`` …) keep torchrun's meaning."""

    JOB = "DDP_JOB"
    """Name of the job, the value of the metric label ``ddp_job``."""
    NAMESPACE = "DDP_NAMESPACE"
    RUN_ID = "DDP_RUN_ID"
    """Unique per submission. The store refuses agents of another run."""
    SECRET_FILE = "DDP_SECRET_FILE"  # noqa: S105 - the name of a variable
    """File with the secret of the run. Its processes use the secret to authenticate to one another."""
    POD_NAME = "DDP_POD_NAME"
    """Name of the pod. Its trailing number is the node index, which orders the ranks."""
    POD_IP = "DDP_POD_IP"
    """Address at which peers reach this pod, and from which it connects."""
    NODE_NAME = "DDP_NODE_NAME"
    """Kubernetes node that the pod runs on."""
    RUN_DIR = "DDP_RUN_DIR"
    """Directory of this pod: metric files, error files, summary. Survives the container, not the pod."""
    METRICS_PORT = "DDP_METRICS_PORT"
    METRICS_ADDRESS = "DDP_METRICS_ADDRESS"
    """Address that the aggregator binds. Unset: all addresses in a pod, the loopback elsewhere."""
    METRICS_DIR = "DDP_METRICS_DIR"
    """Directory of the metric files; set by the launcher for its workers. Metrics are off where it is unset."""
    METRICS_HOOKS = "DDP_METRICS_HOOKS"
    """``0``: the launcher does not count the steps of scripts that do not report them themselves."""
    CHECKPOINT_DIR = "DDP_CHECKPOINT_DIR"
    CHECKPOINT_SCOPE = "DDP_CHECKPOINT_SCOPE"
    """Scope of ``DDP_CHECKPOINT_DIR``: a value of :class:`CheckpointScope`."""
    COMPILE_CACHE = "DDP_COMPILE_CACHE"
    """Directory of the caches of torch.compile that outlives the pod. The launcher points Inductor and Triton to a
    directory in it."""
    TERMINATION_LOG = "DDP_TERMINATION_LOG"
    """File that becomes the container's termination message."""
    GRACE_SECONDS = "DDP_GRACE_SECONDS"
    """Grace period of the pod: seconds between SIGTERM and SIGKILL."""
    GENERATION = "DDP_GENERATION"
    """Number of the rendezvous that formed this worker group; set by the launcher for its workers."""
    FENCE = "DDP_FENCE"
    """Fencing number that grows with every worker group of a run; readers use it to detect a stale writer. It grows
    even where the store and the pods have lost their state and the generation begins at 1 again. Set by the launcher
    for its workers."""
    RESTARTS = "DDP_RESTARTS"
    """Restarts of the run so far, as a JSON object cause → count; set by the launcher for its workers."""
    MOMENTS = "DDP_MOMENTS"
    """Times at which the worker group formed: a JSON object name of a :class:`LifecycleEvent` → Unix time; set by the
    launcher for its workers."""
    NODES = "DDP_NODES"
    """``MIN:MAX`` nodes that the run can train with; set by the launcher for its workers."""
    PARALLEL = "DDP_PARALLEL"
    """Layout of the ranks, in the syntax of :mod:`ddp_trainer.common.parallel_dims`; unset where none was given."""
    PREFLIGHT = "DDP_PREFLIGHT"
    """``off``, ``warn`` or ``strict``: preflight checks of nodes before the first workers start."""
    ON_HANG = "DDP_ON_HANG"
    """``off``, ``warn`` or ``act``: default of ``--on-hang``. The launcher passes its own choice to its workers."""
    HANG_FLOOR = "DDP_HANG_FLOOR"
    """Default of ``--hang-floor``, in seconds."""
    NUMA_BINDING = "DDP_NUMA_BINDING"
    """Default of ``--numa-binding``."""
    SURVIVE_ON_NCCL = "DDP_SURVIVE_ON_NCCL"
    """``1``: worker processes survive the end of an NCCL group, as with ``--survive-on-nccl``. Not proven on GPUs."""
    LAST_SCRAPE = "DDP_LAST_SCRAPE"
    """Longest time, in seconds, that a pod whose run is over waits for a last scrape by a Prometheus that scraped it
    regularly (20; 0 for none)."""
    RESTART_IN_PLACE = "DDP_RESTART_IN_PLACE"
    """``1`` in every worker pod: ``ddp-launch`` starts the launcher as a child process, and again when it crashes, see
    ``ddp_trainer.launch.resident_parent``. Unset or ``0``: a crash of the launcher ends the container."""
    PARENT_LINK = "DDP_PARENT_LINK"
    """Sockets that a fork server passes to the launcher it starts: :mod:`ddp_trainer.launch.host.parent_link`."""
    FORK_SERVER = "DDP_FORK_SERVER"
    """Seconds between a start of workers and the start of the fork server from which later workers are forked; 0 for no
    fork server."""
    HEARTBEAT = "DDP_HEARTBEAT"
    """Heartbeat page: the file in which one worker marks its section; set by the launcher for each of its workers."""
    LINT_IGNORE = "DDP_LINT_IGNORE"
    """Rules of :mod:`ddp_trainer.common.lint` to leave out, separated by commas, or ``all``."""
    CHANNEL = "DDP_CHANNEL"
    """Number of the file descriptor that connects a worker to its agent, see
    :mod:`ddp_trainer.process.worker_protocol`; set by the launcher for its workers."""
    PACKAGES = "DDP_PACKAGES"
    """Directory of the packages that an init container has installed, see ``ddp_trainer.launch.packages``."""
    REQUIREMENTS = "DDP_REQUIREMENTS"
    """Text of the requirements file of these packages."""
    TORCHRUN_SHIM = "DDP_TORCHRUN_SHIM"
    """``1``: a ``torchrun`` in the command of a rank starts its program as that rank, see
    ``ddp_trainer.launch.torchrun_shim``."""
    LAUNCH_FLAGS = "DDP_LAUNCH_FLAGS"
    """Flags of ``ddp-launch`` in the pods of a TrainJob, where the user's command starts torchrun. They replace the
    user's."""
    SHARE_STORE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    """Variable of torch. At its default, a scale-up or a replaced pod kills or splits a c10d job of stock torchrun."""


class CheckpointScope(StrEnum):
    """Scope of a checkpoint directory: the ranks that see the same one, and so the ranks that write to it."""

    JOB = "job"
    """One shared volume. Global rank 0 writes."""
    POD = "pod"
    """A volume per pod. Local rank 0 of every pod writes. On resume, all ranks receive the newest copy."""


STORE_CLIENTS: Final = {"s3": "s3fs", "gs": "gcsfs"}
"""Scheme of an object store's URL → package that reads it. The extra of ``kubectl-ddp`` has the name of the scheme."""


class Port(IntEnum):
    """Port numbers inside a pod."""

    RENDEZVOUS = 29400
    LOCAL_RENDEZVOUS = 28571
    """Store of a job on this machine. torchrun takes 29400 by default."""
    METRICS = 9464
    OPERATOR = 23456
    """Port number that the Kubeflow operator requires, under its port name, in every worker."""


class PortName(StrEnum):
    """Port names; Kubernetes allows 15 characters."""

    RENDEZVOUS = "rendezvous"
    METRICS = "metrics"
    OPERATOR = "pytorchjob-port"


class Label(StrEnum):
    """Labels on every rendered object and pod."""

    JOB = f"{GROUP}/job"
    ROLE = f"{GROUP}/role"
    RUN_ID = f"{GROUP}/run-id"
    MANAGED_BY = "app.kubernetes.io/managed-by"


class Role(StrEnum):
    """Values of ``ddp.dev/role``."""

    WORKER = "worker"
    STORE = "store"


class Annotation(StrEnum):
    """Annotations on the root object."""

    SPEC = f"{GROUP}/spec"
    """The effective job specification as JSON."""
    DIGEST = f"{GROUP}/digest"
    """SHA-256 of the effective specification, without the fields that differ per submission."""
    FIRST_ERROR = f"{GROUP}/first-error"
    """The first error of any rank as JSON. It is copied from the pod that reported it, since that pod may be
    deleted."""
    SUBMITTED = f"{GROUP}/submitted"
    """Unix time of the submission, in seconds. ``creationTimestamp`` has no fractions."""
    SUMMARY = f"{GROUP}/summary"
    """Summary of a finished run as JSON, copied from a pod in the same way."""
    EARLIER = f"{GROUP}/earlier"
    """What is known of a job from pods that may be gone, as JSON: its start, and from suspended pods their progress."""
    NODES = f"{GROUP}/nodes"
    """Number of nodes that the controller gives a TrainJob of a ClusterTrainingRuntime; its own field cannot change."""
    SIZE = f"{GROUP}/size"
    """Last change of the size by the controller, as JSON: ``wanted`` and ``granted`` nodes, ``reason``, and ``since``,
    a Unix time."""
    MOVE = f"{GROUP}/move"
    """Move of pods by the controller, as JSON: ``size``, the number of pods before it, and ``since``, a Unix time."""


class Path(StrEnum):
    """Paths inside a container."""

    RUN_DIR = "/var/run/ddp"
    METRICS_DIR = "/var/run/ddp/metrics"
    """``File.METRICS`` in the run directory. It is a memory volume, since a store into a page that the kernel writes
    back to a disk blocks."""
    SECRET = "/var/run/ddp-secret"  # noqa: S105 - a path
    """Mount point of the run's Secret; the file in it is :data:`SECRET_KEY`."""
    CHECKPOINT_DIR = "/checkpoints"
    COMPILE_CACHE = "/compile-cache"
    """Mount point of the claim of ``compileCache``."""
    CODE = "/var/run/ddp-code"
    """Code that is submitted with the job: a read-only script, or a directory."""
    CODE_ARCHIVE = "/var/run/ddp-code-archive"
    """Mount point of a packed directory of code."""
    RUNTIME = "/var/run/ddp-runtime"
    """Mount point of the image with the launcher, for pods whose own image does not hold it."""
    PACKAGES = "/var/run/ddp-packages"
    """Packages that an init container installs."""
    TERMINATION_LOG = "/dev/termination-log"
    SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's name, mounted as a sized memory volume
    SCRATCH = "/tmp"  # noqa: S108 - the root file system is read-only, so each pod gets its own
    CACHE = "/tmp/.cache"  # noqa: S108 - as above
    """Folder of caches, such as compiled kernels. A volume mounted here outlives the pod."""


class File(StrEnum):
    """Files in a pod's run directory."""

    SUMMARY = "summary.json"
    """Summary of the run: samples_lost, samples_repeated, steps, restarts, goodput, result (see the design)."""
    FIRST_ERROR = "error.json"
    """The earliest error of any rank of this pod."""
    ACCOUNT = "account.json"
    """Time account of the job before this pod started, as rank 0 read it. The launcher uses it if this pod ends
    before its first step."""
    LAUNCHER = "launcher.json"
    """Place of this pod's launcher in the run, which its successor reads after a crash."""
    METRICS = "metrics"
    """Directory of the metric files."""
    ATTEMPTS = "attempts"
    """Directory of per-generation files: torch's error file of each rank."""


SECRET_KEY: Final = "run-secret"  # noqa: S105 - a key of the object
"""Key in the Secret of a run, and so the name of its file. Its value is ``RUN_ID:SECRET``, and the secret 256 random
bits as 64 hexadecimal digits after ``ddprunsecret``. A file written by hand may hold the digits alone."""


FAMILY_QUERY: Final = "name[]"
"""Query parameter that selects metric families, as in ``/metrics?name[]=ddp_step&name[]=ddp_loss``. The name is that of
Prometheus' client libraries. An aggregator that does not support it returns all families."""

HANG_PATH: Final = "/hang"
"""Path of the aggregator that serves the launcher's current view of the pod's ranks, without stacks: a JSON
document, see ``ddp_trainer.launch.hang.status_socket``."""

HISTORY_PATH: Final = "/history"
"""Path of the aggregator, beside ``/metrics``, that serves the history of the pod's metrics: a JSON document, see
``ddp_trainer.metrics.serve.history``."""

HISTORY_VERSION: Final = 1
"""Version of the history document."""

HISTORY_MARK: Final = "ddp-history "
"""Prefix of the lines with which an aggregator writes the packed history to the end of its pod's log. Apart from a
termination message of 4 KiB, the log is all that can be read of an ended container. ``kubectl ddp`` hides these
lines."""

CONTAINER: Final = "pytorch"
"""Name of the trainer's container; the Kubeflow operator requires it."""

TERMINATION_MESSAGE_BYTES: Final = 4096
"""Largest termination message that the kubelet keeps, in bytes."""

NAME_LENGTH: Final = 63
"""Longest DNS label, and so the longest name of a pod or Service, in characters."""


class Exit(IntEnum):
    """Exit codes of a pod. Controllers treat 1 to 127 as permanent failures, and 128 and above as retryable ones."""

    SUCCESS = 0
    FAILURE = 1
    """Also every other exit code of the user's script, which passes through."""
    USAGE = 2
    DO_NOT_RESTART = 93
    """The job does not restart: its restart budget is spent, or a retry cannot help."""
    NOT_FIT = 94
    """``--preflight=strict`` found a problem that would make the run fail or hang."""
    SIGNAL_BASE = 128
    """128 + n: died of signal n."""
    TERMINATED = 143
    """Stopped cleanly after SIGTERM."""
    RENDEZVOUS_LOST = 170
    """The store could not be reached in time, or refused this pod."""
    HANG = 171
    STALE_GENERATION = 172
    """Another worker group has replaced this one, which was fenced off before it could write."""
    GPU_FAULT = 173
    """A GPU of the node has failed or does not work."""


class RestartCause(StrEnum):
    """Cause of a restart of the worker group."""

    FAILURE = "failure"
    RESIZE = "resize"
    HANG = "hang"
    PREEMPTION = "preemption"
    MANUAL = "manual"


class FailureReason(StrEnum):
    """Cause of an unexpected exit of a worker process."""

    PYTHON_EXCEPTION = "python_exception"
    GPU_OOM = "gpu_oom"
    GPU_FAULT = "gpu_fault"
    """A GPU failed or is missing, see :mod:`ddp_trainer.common.gpu_faults`."""
    HOST_OOM = "host_oom"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    COLLECTIVE_ERROR = "collective_error"
    HANG = "hang"
    SIGKILL = "sigkill"
    SIGSEGV = "sigsegv"
    SIGABRT = "sigabrt"
    SIGTERM = "sigterm"
    IMPORT_ERROR = "import_error"
    EARLY_EXIT = "early_exit"
    """The worker exited with 0 while other ranks needed it for a collective."""
    LAUNCHER_CRASH = "launcher_crash"
    """The launcher of a pod died, and its workers with it; the pod has started it again."""
    OTHER = "other"


class GroupState(StrEnum):
    """State of the worker group of a pod."""

    PENDING = "pending"
    RENDEZVOUS = "rendezvous"
    SPARE = "spare"
    """The group is full without this pod."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


class OutsideReason(StrEnum):
    """Why a node that runs is in no worker group."""

    NAME_RESOLUTION = "name_resolution"
    """The name of the store does not resolve."""
    CONNECTION = "connection"
    """The store does not accept a connection."""
    HANDSHAKE = "handshake"
    """The server at the store's address is not a store of this run."""
    SECRET = "secret"  # noqa: S105 - a reason
    """The store has another secret than the node."""
    NAME_TAKEN = "name_taken"
    """Another connection holds the node's name."""
    PREFLIGHT = "preflight"
    """The preflight of the node has failed."""
    WAITING = "waiting"
    """The store has not put the node into a group yet, or the group is full."""


class LifecycleEvent(StrEnum):
    """Events whose time the launcher passes to its workers."""

    LAUNCHED = "launched"
    """The launcher started."""
    JOINED = "joined"
    """The launcher joined the rendezvous that formed this worker group."""
    FORMED = "formed"
    """The worker group was formed."""
    STARTED = "started"
    """The process of the launcher started."""
    IMPORTING = "importing"
    """The start of workers began to wait for the imports of the fork server."""


class Profile(IntEnum):
    """Defaults, limits and exit codes that ``ddp_trainer profile`` in a pod and ``kubectl ddp profile`` share."""

    STEPS = 5
    """Default number of steps in a trace."""
    MOST_STEPS = 50
    MOST_BYTES = 256 << 20
    """Largest trace, gzipped, in bytes."""
    BUSY = 75
    """Exit code: another profiler runs on this rank."""
    LATE = 124
    """Exit code: the trace was not ready in time."""
