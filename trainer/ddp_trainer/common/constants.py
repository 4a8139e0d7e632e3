"""Every name that crosses the border between the plugin and the pod, once.

The plugin renders these names into manifests and reads them back from pods; the launcher, the trainer and the
aggregator obey them. Standard library only, so that both sides may import it at no cost. Anything that only one
side knows does not belong here.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

GROUP: Final = "ddp.dev"
"""Prefix of our labels and annotations."""

FIELD_MANAGER: Final = "kubectl-ddp"


class Env(StrEnum):
    """Environment variables of a pod. torchrun's own (``RANK``, ``PET_*`` …) keep torchrun's meaning."""

    JOB = "DDP_JOB"
    """Name of the job, the value of the metric label ``ddp_job``."""
    NAMESPACE = "DDP_NAMESPACE"
    RUN_ID = "DDP_RUN_ID"
    """Unique per submission; agents of another run are refused by the store."""
    SECRET_FILE = "DDP_SECRET_FILE"  # noqa: S105 - the name of a variable
    """File with the secret of the run, by which its processes authenticate to one another."""
    POD_NAME = "DDP_POD_NAME"
    """Name of the pod; its trailing number is the node index, by which ranks are ordered."""
    POD_IP = "DDP_POD_IP"
    """Address that peers reach this pod at, and from which it connects."""
    NODE_NAME = "DDP_NODE_NAME"
    """Kubernetes node the pod runs on."""
    RUN_DIR = "DDP_RUN_DIR"
    """Directory of this pod: boards, error files, summary. Survives the container, not the pod."""
    METRICS_PORT = "DDP_METRICS_PORT"
    METRICS_ADDRESS = "DDP_METRICS_ADDRESS"
    """Address the aggregator binds; when unset, all in a pod, and the loopback elsewhere."""
    METRICS_DIR = "DDP_METRICS_DIR"
    """Directory of the boards; set by the launcher for its workers, metrics are off where it is unset."""
    METRICS_HOOKS = "DDP_METRICS_HOOKS"
    """``0`` keeps the launcher from counting the steps of scripts that do not report them themselves."""
    CHECKPOINT_DIR = "DDP_CHECKPOINT_DIR"
    CHECKPOINT_SCOPE = "DDP_CHECKPOINT_SCOPE"
    """Who shares ``DDP_CHECKPOINT_DIR``: see :class:`CheckpointScope`."""
    TERMINATION_LOG = "DDP_TERMINATION_LOG"
    """File that becomes the container's termination message."""
    GRACE_SECONDS = "DDP_GRACE_SECONDS"
    """Seconds between SIGTERM and SIGKILL that the pod was promised."""
    GENERATION = "DDP_GENERATION"
    """Number of the rendezvous that formed this worker group; set by the launcher for its workers."""
    FENCE = "DDP_FENCE"
    """Grows with every worker group of a run, even over a store and pods that remember nothing, where the generation
    begins at 1 again: by it a stale writer is told. Set by the launcher for its workers."""
    RESTARTS = "DDP_RESTARTS"
    """JSON object cause → count of the run so far; set by the launcher for its workers."""
    MOMENTS = "DDP_MOMENTS"
    """JSON object of Unix times, by the name of a :class:`Moment`: how the worker group came about; set by the launcher
    for its workers."""
    NODES = "DDP_NODES"
    """``MIN:MAX`` nodes that the run goes on with; set by the launcher for its workers."""
    PARALLEL = "DDP_PARALLEL"
    """How the ranks share one model, as :mod:`ddp_trainer.common.parallel_dims` reads it; unset where nobody said."""
    PREFLIGHT = "DDP_PREFLIGHT"
    """``off``, ``warn`` or ``strict``: whether nodes are looked at before the first workers start."""
    ON_HANG = "DDP_ON_HANG"
    """``off``, ``warn`` or ``act``: the default of ``--on-hang``. The launcher passes its own choice to its workers."""
    HANG_FLOOR = "DDP_HANG_FLOOR"
    """Seconds, what ``--hang-floor`` is by default."""
    SURVIVE_ON_NCCL = "DDP_SURVIVE_ON_NCCL"
    """``1`` keeps the processes of workers when an NCCL group ends, as ``--survive-on-nccl``. Not proven on GPUs."""
    LAST_SCRAPE = "DDP_LAST_SCRAPE"
    """Seconds that a pod whose run is over stays at most for a Prometheus that has come regularly; 20 where it is not
    set, 0 for none."""
    ZYGOTE = "DDP_ZYGOTE"
    """Seconds after a start of workers at which a process is made that later ones are forked from; 0 for none."""
    PULSE = "DDP_PULSE"
    """File that a worker marks what it is doing in; set by the launcher for its workers, and theirs alone."""
    LINT_IGNORE = "DDP_LINT_IGNORE"
    """Rules of :mod:`ddp_trainer.common.lint` to leave out, with commas, or ``all``."""
    CHANNEL = "DDP_CHANNEL"
    """Number of the descriptor that leads a worker to its agent, see :mod:`ddp_trainer.process.worker_protocol`; set by
    the launcher for its workers."""
    SHARE_STORE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    """torch's switch; at its default a scale-up or a replaced pod kills or splits a c10d job of stock torchrun."""


SWITCHES: Final = frozenset(
    {
        Env.PREFLIGHT,
        Env.ON_HANG,
        Env.HANG_FLOOR,
        Env.SURVIVE_ON_NCCL,
        Env.LAST_SCRAPE,
        Env.ZYGOTE,
        Env.LINT_IGNORE,
        Env.METRICS_HOOKS,
    }
)
"""Variables of the launcher that a job may set as it likes; the others are the launcher's and the platform's."""


class CheckpointScope(StrEnum):
    """Which ranks see the same checkpoint directory, and so which of them write."""

    JOB = "job"
    """One shared volume: global rank 0 writes."""
    POD = "pod"
    """A volume per pod: local rank 0 of every pod writes; on resume the newest copy is sent to all."""


class Port(IntEnum):
    """Port numbers inside a pod."""

    RENDEZVOUS = 29400
    METRICS = 9464
    OPERATOR = 23456
    """The Kubeflow operator insists on a port of this number's name in every worker."""


class PortName(StrEnum):
    """Port names; Kubernetes allows 15 characters."""

    RENDEZVOUS = "rendezvous"
    METRICS = "metrics"
    OPERATOR = "pytorchjob-port"


class Label(StrEnum):
    """Labels on every object and pod that we render."""

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
    """SHA-256 of the effective specification, without what differs per submission."""
    FIRST_ERROR = f"{GROUP}/first-error"
    """The first error of any rank as JSON, copied from the pod that told it, which may be gone."""
    SUMMARY = f"{GROUP}/summary"
    """What a run that is over came to as JSON, copied likewise."""


class Path(StrEnum):
    """Paths inside a container."""

    RUN_DIR = "/var/run/ddp"
    METRICS_DIR = "/var/run/ddp/metrics"
    """``File.METRICS`` in the run directory: memory, since a store into a page that a disk writes back waits."""
    SECRET = "/var/run/ddp-secret"  # noqa: S105 - a path
    """Where the Secret of the run is mounted; the file is :data:`SECRET_KEY`."""
    CHECKPOINT_DIR = "/checkpoints"
    CODE = "/var/run/ddp-code"
    """Where the code that travels with its job is: a script, read-only, or a directory."""
    CODE_ARCHIVE = "/var/run/ddp-code-archive"
    """Where a directory of code is mounted, packed."""
    TERMINATION_LOG = "/dev/termination-log"
    SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's name, mounted as a sized memory volume
    SCRATCH = "/tmp"  # noqa: S108 - the root file system is read-only, so each pod gets its own
    CACHE = "/tmp/.cache"  # noqa: S108 - as above
    """Folder of caches, such as compiled kernels. A volume mounted here outlives the pod."""


class File(StrEnum):
    """Files in a pod's run directory."""

    SUMMARY = "summary.json"
    """What the run came to; see design: samples_lost, samples_repeated, steps, restarts, goodput, result."""
    FIRST_ERROR = "error.json"
    """The earliest error of any rank of this pod."""
    ACCOUNT = "account.json"
    """What the time of the job went into before this pod came, as rank 0 found it: for its launcher, should this pod
    end before a step."""
    METRICS = "metrics"
    """Directory of the boards."""
    ATTEMPTS = "attempts"
    """Directory of per-generation files: torch's error file of each rank."""


SECRET_KEY: Final = "run-secret"  # noqa: S105 - a key of the object
"""Key in the Secret of a run, and so the name of its file. Its value is ``RUN_ID:HEX``: the run id, a colon, and 256
random bits as 64 hexadecimal digits. A file that somebody wrote by hand may hold the digits alone."""

LOG_PREFIX: Final = "[rank${rank}] "
"""torchrun's ``--log-line-prefix-template`` in every pod, so that a line tells which rank wrote it."""

FAMILY_QUERY: Final = "name[]"
"""What asks for single families, as in ``/metrics?name[]=ddp_step&name[]=ddp_loss``; the word of Prometheus' client
libraries. An aggregator that does not know it tells everything."""

HANG_PATH: Final = "/hang"
"""Where the aggregator serves how the ranks of its pod look to their launcher now, without stacks: a JSON document, see
``ddp_trainer.launch.hang.status_socket``."""

HISTORY_PATH: Final = "/history"
"""Where the aggregator serves, beside ``/metrics``, what the numbers of its pod have been: a JSON document, see
``ddp_trainer.metrics.serve.history_format``."""

HISTORY_VERSION: Final = 1
"""Of that document."""

HISTORY_MARK: Final = "ddp-history "
"""What the lines begin with in which an aggregator leaves that document, packed, at the end of its pod's log: of a
container that has ended nothing else can be read but 4 KiB. ``kubectl ddp`` shows these lines to nobody."""

CONTAINER: Final = "pytorch"
"""Name of the trainer's container; the Kubeflow operator demands this one."""

TERMINATION_MESSAGE_BYTES: Final = 4096
"""What the kubelet keeps of a termination message."""

CREDENTIALS: Final = (
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bhf_\w{20,}"
    r"|\bsk-[\w-]{20,}|\bxox[abps]-[\w-]{16,}|\beyJ[\w-]{10,}\.eyJ[\w-]{5,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)|://[^/\s:@]*:[^/\s:@]+@"
)
"""What tokens of common services, private keys and passwords in URLs look like; a regular expression of Python's and of
Go's. Neither goes into an object of a job, nor into a pod's termination message, which events repeat."""

NAME_LENGTH: Final = 63
"""Longest DNS label, and so longest name of a pod or Service."""


class Exit(IntEnum):
    """Exit codes of a pod, which controllers read: 1-127 permanent, 128 and above retryable."""

    SUCCESS = 0
    FAILURE = 1
    """Also every other code of the user's script, which passes through."""
    USAGE = 2
    DO_NOT_RESTART = 93
    """The job gives up: its restart budget is spent, or a retry cannot help."""
    NOT_FIT = 94
    """``--preflight=strict`` found what would make the run fail or hang."""
    SIGNAL_BASE = 128
    """128 + n: died of signal n."""
    TERMINATED = 143
    """Told to stop by SIGTERM, and stopped in good order."""
    RENDEZVOUS_LOST = 170
    """The store could not be reached in time, or closed the run to this pod."""
    HANG = 171
    STALE_GENERATION = 172
    """Another worker group has taken over; this one was fenced off before it could write."""
    GPU_FAULT = 173
    """A GPU of the node failed, or does not work."""


class RestartCause(StrEnum):
    """Why a worker group was formed anew."""

    FAILURE = "failure"
    MEMBERSHIP = "membership"
    HANG = "hang"
    PREEMPTION = "preemption"
    MANUAL = "manual"


class FailureReason(StrEnum):
    """Why a worker process ended that should not have."""

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
    """It exited with 0 while other ranks needed it for a collective."""
    OTHER = "other"


class GroupState(StrEnum):
    """What the worker group of a pod is doing."""

    PENDING = "pending"
    RENDEZVOUS = "rendezvous"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


class Phase(StrEnum):
    """Parts of a training step; over a step they add up to its wall time."""

    DATA_WAIT = "data_wait"
    HOST_TO_DEVICE = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMM_EXPOSED = "comm_exposed"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


class Wait(StrEnum):
    """What a rank that holds a part of a model waits for in a step; on a CPU it is in the phase ``comm_exposed``."""

    ALL_GATHER = "all_gather"
    """Weights that other ranks keep."""
    REDUCE_SCATTER = "reduce_scatter"
    """Sums of gradients over ranks, those of a layout's replicas included."""
    STAGE = "stage"
    """What another stage of the pipeline is about to give, or to take: the bubble."""


class JobTime(StrEnum):
    """What the wall clock of a job was spent on; over all of them it adds up to the time since the job first started.

    The classes are those of Google's ML goodput measurement, with the time of a hang beside them.
    """

    PRODUCTIVE = "productive"
    """In steps that were committed, without what is named below; what was lost of it is a counter of its own."""
    SCHEDULING = "scheduling"
    """No pod: one has ended that was not told to, until a launcher runs again."""
    SUSPENDED = "suspended"
    """No pod, since all were told to stop and saved; until a launcher runs again."""
    STARTUP = "startup"
    """Launcher and workers start: imports, devices, the process group."""
    INIT = "init"
    """Model, data and strategy are made ready for the first step."""
    RENDEZVOUS = "rendezvous"
    CHECKPOINT_LOAD = "checkpoint_load"
    DATA_WAIT = "data_wait"
    CHECKPOINT_SAVE = "checkpoint_save"
    """While training stands still for it."""
    EVAL = "eval"
    HANG = "hang"
    """From the last step before a hang until the group has been stopped for it."""
    RESTART = "restart"
    """From the last step before a failure until the agents join anew."""
    ELASTIC_RESIZE = "elastic_resize"
    """From the last step before nodes came or went until the agents join anew."""
    OTHER = "other"


class Moment(StrEnum):
    """What a launcher tells its workers the time of."""

    LAUNCHED = "launched"
    """The launcher started."""
    JOINED = "joined"
    """It joined the rendezvous that formed this worker group."""
    FORMED = "formed"
    """The worker group was formed."""


class Section(StrEnum):
    """What a rank is about, for those who wait for it; each has a time limit of its own, or none."""

    SETUP = "setup"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    ASIDE = "aside"
    """It has no place in the layout, and nobody waits for it."""


class MetricLabel(StrEnum):
    """Labels of our metrics. ``job`` is Prometheus' own, so ours is ``ddp_job``."""

    JOB = "ddp_job"
    RANK = "rank"
    PHASE = "phase"
    STATE = "state"
    CAUSE = "cause"
    REASON = "reason"
    RESULT = "result"
    LOCAL_RANK = "local_rank"
    NODE_RANK = "node_rank"
    BACKEND = "backend"
    DEVICE = "device"
    DEVICE_NAME = "device_name"
    GPU_UUID = "gpu_uuid"
    PROCESS_GROUP = "process_group"
    OPERATION = "operation"
    RUN_ID = "run_id"
    TORCH_VERSION = "torch_version"
    NCCL_VERSION = "nccl_version"
    PRECISION = "precision"
    PARALLELISM = "parallelism"
    VERSION = "version"
    REPLICATE = "replicate"
    PP = "pp"
    SHARD = "shard"
    TP = "tp"


PLACE_LABELS: Final = (MetricLabel.REPLICATE, MetricLabel.PP, MetricLabel.SHARD, MetricLabel.TP)
"""A rank's coordinates in the layout of its job, from the outermost dimension to the innermost; those of dimensions of
size 1 are empty, and all where there is no layout."""


class Metric(StrEnum):
    """Metric families that the command line reads back from a pod, or that several rooms speak of; the whole catalogue
    is the trainer's.
    """

    STEPS = "ddp_steps_total"
    SAMPLES = "ddp_samples_total"
    PHASE_SECONDS = "ddp_step_phase_seconds_total"
    WAIT_SECONDS = "ddp_step_wait_seconds_total"
    STEP = "ddp_step"
    STEPS_PLANNED = "ddp_steps_planned"
    EPOCH = "ddp_epoch"
    LAST_STEP_TIMESTAMP = "ddp_last_step_timestamp_seconds"
    LOSS = "ddp_loss"
    LEARNING_RATE = "ddp_learning_rate"
    GRADIENT_NORM = "ddp_gradient_norm"
    LOSS_SCALE = "ddp_loss_scale"
    TOKENS = "ddp_tokens_total"
    MODEL_FLOPS = "ddp_model_flops_total"
    RECOMPUTED = "ddp_recomputed_flops_ratio"
    PEAK_FLOPS = "ddp_peak_flops_per_second"
    STEP_DURATION = "ddp_step_duration_seconds"
    SAMPLED_STEPS = "ddp_sampled_steps_total"
    SAMPLED_BUSY = "ddp_sampled_busy_seconds_total"
    SAMPLED_COMM_EXPOSED = "ddp_sampled_comm_exposed_seconds_total"
    ENQUEUED = "ddp_collective_last_enqueued_sequence"
    COMPLETED = "ddp_collective_last_completed_sequence"
    JOB_TIME = "ddp_job_time_seconds_total"
    JOB_START = "ddp_job_start_time_seconds"
    LOST_PROGRESS = "ddp_lost_progress_seconds_total"
    LOST_STEPS = "ddp_lost_steps_total"
    RANK_UP = "ddp_rank_up"
    RANK_PID = "ddp_rank_pid"
    RANK_INFO = "ddp_rank_info"
    JOB_INFO = "ddp_job_info"
    RESTARTS = "ddp_worker_restarts_total"
    FAILURES = "ddp_worker_failures_total"
    GROUP_STATE = "ddp_worker_group_state"
    RENDEZVOUS_ROUND = "ddp_rendezvous_round"
    WORLD_SIZE = "ddp_world_size"
    FIRST_RANK = "ddp_first_rank"
    NODES = "ddp_nodes"
    STALLED = "ddp_stalled_seconds"
    STALLED_BY = "ddp_stalled_by_rank"


class Profile(IntEnum):
    """What ``ddp_trainer profile`` in a pod and ``kubectl ddp profile`` agree on."""

    STEPS = 5
    """Of a trace, where nobody says how many."""
    MOST_STEPS = 50
    MOST_BYTES = 256 << 20
    """Of a trace, gzipped."""
    BUSY = 75
    """Exit code: somebody else profiles this rank."""
    LATE = 124
    """Exit code: no trace in time."""


class Dashboard(StrEnum):
    """Grafana's dashboards of ours, by their ``uid``."""

    JOB = "ddp-job"
    RANKS = "ddp-ranks"
    FLEET = "ddp-fleet"
