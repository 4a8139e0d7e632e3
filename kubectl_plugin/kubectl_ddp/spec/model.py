"""The complete job specification, and the only table of the keys of a job file.

How to add a job key, here ``costCenter``, which sets a pod annotation:

1. Add a field to ``JobSpec``. Flag, job file, JSON schema, default, completion, ``kubectl ddp explain``, arguments of
   the Python client, values of the chart and documentation are made from it. Without ``default`` the key is required,
   and ``spec/resolve.py`` needs a rule. Give ``cluster_only=True`` if a job on this machine ignores the key::

       cost_center: str | None = key(
           "costCenter", Group.POD, _LABEL, "Cost center that the pods are charged to.", "NAME",
           example="research", default=None,
       )

2. Render it: a template in ``render/templates``, or ``metadata_view`` in ``render/metadata.py`` for labels and
   annotations, which refuses ``labels`` and ``annotations`` of the user that contradict them.
3. Draw a value in ``jobs()`` of ``tests/support/jobs.py``, and add a refused one to ``test_spec_resolve.py``. Test the
   rendered object in ``tests/render/test_render_pods.py``.
4. If the value conflicts with another key, refuse it in ``spec/rules.py``.
5. Run ``make docs manifests``, which also writes ``client/job_keys.py``. ``docs/cluster.md`` has the keys by topic, and
   ``CHANGELOG.md`` gets a line; no other page or list has to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ddp_trainer.common.parallel_dims import WRITTEN, LayoutError, LayoutRange
from kubectl_ddp.engines import Engine
from kubectl_ddp.fabrics.catalog import AUTO, NONE, profiles, suggest_name
from kubectl_ddp.spec.job_key import Completion, Group, field_of, key, key_dataclass, keys
from kubectl_ddp.values import parsers as v
from kubectl_ddp.values.network_peers import DEFAULT, MONITORING, DnsServer, Reader
from kubectl_ddp.values.parsers import Egress, EnvSource, SecretKey, Toleration, text_schema
from kubectl_ddp.values.pod import (
    AFFINITY,
    MIG_PROFILE,
    POD_TEMPLATE,
    CodeClaim,
    Mount,
    PullPolicy,
    Rdma,
    RuntimeMount,
    SecretFiles,
    Topology,
    UnixId,
)
from kubectl_ddp.values.program import SCHEMA as REQUIREMENTS
from kubectl_ddp.values.program import Gang, Launcher, Program, QueueResize, parse_requirements
from kubectl_ddp.values.quantity import DURATION, BadValue, Cpu, Memory, NodeRange, parse_seconds


def parse_fabric(name: str) -> str:
    """Parse the name of a fabric, ``auto`` or ``none``. Raises BadValue."""
    if name != AUTO:
        try:
            profiles(name)
        except LookupError as error:
            raise BadValue(str(error), hint=suggest_name(name)) from None
    return name


def parse_layouts(text: str) -> LayoutRange:
    """Parse ``replicate=2,shard=4,tp=2,pp=2``, with sizes as N or MIN:MAX. Raises BadValue."""
    try:
        return LayoutRange.parse(text)
    except LayoutError as error:
        raise BadValue(str(error)) from None


_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME: Final = v.Matching(
    r"[a-z]([-a-z0-9]*[a-z0-9])?",
    "not a name for a job",
    "Use lower case letters, digits and dashes, begin with a letter and do not end with a dash.",
)
_NAMESPACE: Final = v.Matching(
    rf"(?=.{{1,63}}$){v.LABEL}", "not a namespace", "Use lower case letters, digits and dashes."
)
_OBJECT: Final = v.Matching(
    rf"(?=.{{1,253}}$){v.SUBDOMAIN}", "not a name of an object", "Use lower case letters, digits, '-' and '.'."
)
_CACHE: Final = v.Matching(
    rf"(?=.{{1,253}}$){v.SUBDOMAIN}|/[^/:\s][^:\s]*",
    "neither a claim nor a directory",
    "Name a PersistentVolumeClaim, or a directory from the root, as in '/data/compile-cache'.",
)
_IMAGE: Final = v.Matching(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", "not an image", "Write it as 'registry/name:version'.")
_INTERPRETER: Final = v.Matching(r"[^\s$]+", "not an interpreter", "Name a program of the image, as in 'python3.12'.")
_MODULE: Final = v.Matching(rf"{_VARIABLE}(\.{_VARIABLE})*", "not a Python module", "Write it as after 'python -m'.")
_LABEL: Final = v.Matching(v.LABEL_VALUE, "not a value of a label", "Use letters, digits, '-', '_' and '.'.")
_MIG: Final = v.Matching(MIG_PROFILE, "not a MIG profile", "Write it as 'nvidia-smi mig -lgip' does, as in '3g.40gb'.")
_NETWORK: Final = v.Matching(
    rf"({v.LABEL}/)?{v.SUBDOMAIN}(@[a-z][-a-z0-9]{{0,14}})?",
    "not a network",
    "Name a NetworkAttachmentDefinition, as in 'rdma-vf' or 'networks/rail-0'.",
)
_PATH: Final = v.Matching(r"[\s\S]+", "not a path", "Name a file.")
_MEMORY: Final = v.Parsed(Memory.parse, text_schema(Memory.PATTERN))
_SECRET_KEY: Final = v.Parsed(SecretKey.parse, text_schema(SecretKey.PATTERN))
_SECONDS: Final = v.Parsed(parse_seconds, text_schema(DURATION))
_COMMAND: Final = {"type": ["array", "string"], "items": v.TEXT}


@key_dataclass
class JobSpec:
    """Complete job. :func:`kubectl_ddp.spec.rules.checked` tells if its values are consistent."""

    # The formatter would write one argument per line.
    # fmt: off
    name: str = key(
        "name", Group.JOB, _NAME, "Name of the job, and prefix of all derived names.", "NAME", example="digits",
        otherwise="the program",
    )
    namespace: str | None = key(
        "namespace", Group.JOB, _NAMESPACE, "Namespace of the job.", "NAME", example="team-a", default=None,
        otherwise="the context", completion=Completion.NAMESPACES,
    )
    program: Program = keys(
        field_of(
            "script", Group.PROGRAM, _PATH, "Local Python file to run; it is sent along with the job.", "FILE",
            example="train.py", flag="SCRIPT", completion=Completion.FILES,
        ),
        field_of(
            "module", Group.PROGRAM, _MODULE, "Python module of the image to run, as 'python -m' does.", "MODULE",
            example="ddp_trainer",
        ),
        field_of(
            "command", Group.PROGRAM, v.parse_command, "Command of the image to run instead of Python.", "WORDS",
            example="[torchrun, train.py]", schema=_COMMAND,
        ),
    )
    code: str | None = key(
        "code", Group.PROGRAM, _PATH, "Local directory to send with the job, without what .gitignore names.", "DIR",
        example="src", default=None, completion=Completion.FILES,
    )
    code_claim: CodeClaim | None = key(
        "codeClaim", Group.PROGRAM, v.Parsed(CodeClaim.parse, text_schema(CodeClaim.PATTERN)),
        "Directory of a claim with the code, mounted read-only; a script is a path in it.", "CLAIM:PATH",
        example="projects:vision", default=None,
    )
    args: tuple[str, ...] = key(
        "args", Group.PROGRAM, v.ListOf(str, v.TEXT), "Arguments of the program.", "WORDS", example="[--epochs, 30]",
        default=[], flag="ARGS (after --)",
    )
    nnodes: NodeRange = key(
        "nnodes", Group.SIZE, v.Parsed(NodeRange.parse, text_schema(NodeRange.PATTERN)),
        "Nodes: N, or MIN:MAX for an elastic job.", "N|MIN:MAX", example="2:8", default="1",
    )
    spares: int = key(
        "spares", Group.SIZE, v.IntRange(0, 1000),
        "Spare pods beyond the maximum of nodes; one takes the place of a lost node immediately.", "N", example="1",
        default=0,
    )
    nproc: int = key(
        "nproc", Group.SIZE, v.ProcessCount(1, 4096), "Processes per node, one rank each.", "N", example="8",
        otherwise="gpus, or 1",
    )
    parallel: LayoutRange | None = key(
        "parallel", Group.SIZE, v.Parsed(parse_layouts, {"type": "string"}),
        "Parallel layout; a size is N, or MIN:MAX in an elastic job.",
        ",".join(f"{name}=N" for name in WRITTEN), example="replicate=2,shard=4", default=None,
    )
    gpus: int = key(
        "gpus", Group.SIZE, v.IntRange(0, 64, "Write the number alone; --gpu-type selects the model."),
        "GPUs per node.", "N", example="8", default=0, otherwise="mig",
    )
    cpu: Cpu = key(
        "cpu", Group.SIZE, v.Parsed(Cpu.parse, text_schema(Cpu.PATTERN)), "Cores per node.", "CORES", example="500m",
        otherwise="gpus, or nproc",
    )
    memory: Memory = key(
        "memory", Group.SIZE, _MEMORY, "Memory per node, including shared memory.", "SIZE", example="64Gi",
        otherwise="gpus, or nproc",
    )
    shm: Memory = key(
        "shm", Group.SIZE, _MEMORY, "Maximum size of /dev/shm, part of the memory.", "SIZE", example="16Gi",
        otherwise="memory",
    )
    image: str = key(
        "image", Group.ENVIRONMENT, _IMAGE, "Container image; $KUBECTL_DDP_IMAGE sets the default.", "IMAGE",
        example="registry.example.com/train:1.4", otherwise="the version of kubectl ddp",
    )
    python: str | None = key(
        "python", Group.ENVIRONMENT, _INTERPRETER,
        "Python interpreter of the image (python; python3 with runtimeImage).", "PROGRAM",
        example="/opt/conda/bin/python", default=None, cluster_only=True,
    )
    runtime_image: str | None = key(
        "runtimeImage", Group.ENVIRONMENT, _IMAGE, "Image with the launcher, for an image without it.", "IMAGE",
        example="registry.example.com/ddp-runtime:1", default=None, cluster_only=True,
    )
    launcher: Launcher | None = key(
        "launcher", Group.ENVIRONMENT, v.ChoiceParser(Launcher, tuple(Launcher)),
        "Launcher of the ranks: ddp-launch (default ddp), or the image's own torchrun.", example="torchrun",
        default=None,
    )
    torchrun_shim: bool | None = key(
        "torchrunShim", Group.PROGRAM, v.Parsed(v.parse_switch, text_schema("true|false")),
        "A torchrun in the command, such as one in a shell script, starts its program as a rank of the job.",
        "true|false", example="true", default=None,
    )
    runtime_mount: RuntimeMount | None = key(
        "runtimeMount", Group.ENVIRONMENT, v.ChoiceParser(RuntimeMount, tuple(RuntimeMount)),
        "Mount of the runtime image: an image volume, or a copy by an init container.", example="copy", default=None,
        otherwise="the version of Kubernetes", cluster_only=True,
    )
    requirements: tuple[str, ...] | None = key(
        "requirements", Group.ENVIRONMENT, parse_requirements,
        "Packages that an init container installs with the image's pip: a requirements file, or its lines.", "FILE",
        example="[einops==0.8.1]", schema=REQUIREMENTS, default=None, flag="--requirements",
        completion=Completion.FILES, cluster_only=True,
    )
    image_pull_secrets: tuple[str, ...] = key(
        "imagePullSecrets", Group.ENVIRONMENT, v.ListOf(_OBJECT, _OBJECT.schema),
        "Secret with credentials for the registry of the image.", "SECRET", example="[registry]", default=[],
        flag="--image-pull-secret", cluster_only=True,
    )
    image_pull_policy: PullPolicy | None = key(
        "imagePullPolicy", Group.ENVIRONMENT, v.ChoiceParser(PullPolicy, tuple(PullPolicy)),
        "Time at which nodes pull the image (IfNotPresent).", example="Always", default=None, cluster_only=True,
    )
    env: Mapping[str, str] = key(
        "env", Group.ENVIRONMENT, v.MapOf(_VARIABLE, "environment variable", v.text, v.TEXT), "Environment variable.",
        "NAME=VALUE", example="{NCCL_DEBUG: WARN}", default={},
    )
    secret_env: Mapping[str, SecretKey] = key(
        "secretEnv", Group.ENVIRONMENT, v.MapOf(_VARIABLE, "environment variable", _SECRET_KEY, _SECRET_KEY.schema),
        "Environment variable with a value from a Secret.", "NAME=SECRET:KEY", example="{HF_TOKEN: hub:token}",
        default={},
    )
    env_from: tuple[EnvSource, ...] = key(
        "envFrom", Group.ENVIRONMENT, v.ListOf(EnvSource.parse, text_schema(EnvSource.PATTERN)),
        "Secret or ConfigMap whose entries all become variables.", "secret/NAME|configmap/NAME",
        example="[configmap/defaults]", default=[],
    )
    max_restarts: int = key(
        "maxRestarts", Group.LIFETIME, v.IntRange(0, 10_000),
        "Maximum restarts after failures, over the whole job (default 10).", "N", example="3", default=10,
    )
    grace_seconds: int = key(
        "grace", Group.LIFETIME, _SECONDS, "Time from SIGTERM to SIGKILL, to finish a step and save.", "TIME",
        example="2m", default="30s",
    )
    checkpoint_claim: str | None = key(
        "checkpointClaim", Group.LIFETIME, _OBJECT, "Shared volume for checkpoints (a PersistentVolumeClaim).", "CLAIM",
        example="digits-checkpoints", default=None,
    )
    compile_cache: str | None = key(
        "compileCache", Group.LIFETIME, _CACHE,
        "Shared cache of torch.compile: a PersistentVolumeClaim, or a directory of a mounted volume.", "CLAIM|DIR",
        example="compile-cache", default=None,
    )
    deadline_seconds: int | None = key(
        "deadline", Group.LIFETIME, _SECONDS, "Stop the job after this time; it counts as failed.", "TIME",
        example="7d", default=None,
    )
    ttl_seconds: int | None = key(
        "ttl", Group.LIFETIME, _SECONDS, "Keep the finished job this long.", "TIME", example="1d", default=None,
    )
    priority: str | None = key(
        "priority", Group.PLACEMENT, _OBJECT, "Priority class of the pods.", "CLASS", example="batch-low", default=None,
        cluster_only=True,
    )
    node_selector: Mapping[str, str] = key(
        "nodeSelector", Group.PLACEMENT, v.MapOf(v.QUALIFIED, "label", _LABEL, _LABEL.schema),
        "Required label of nodes.", "KEY=VALUE", example="{pool: gpu}", default={}, cluster_only=True,
    )
    tolerations: tuple[Toleration, ...] = key(
        "tolerations", Group.PLACEMENT, v.ListOf(Toleration.parse, text_schema(Toleration.PATTERN)),
        "Tolerated taint of nodes.", "KEY[=VALUE][:EFFECT]", example="['nvidia.com/gpu:NoSchedule']", default=[],
        flag="--toleration", cluster_only=True,
    )
    affinity: Mapping[str, Any] | None = key(
        "affinity", Group.PLACEMENT, AFFINITY, "Affinity of the workers, as in a pod.", "YAML",
        example="{nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}", default=None,
        cluster_only=True,
    )
    engine: Engine = key(
        "engine", Group.PLACEMENT, v.ChoiceParser(Engine, tuple(Engine)), "Kind of the job object on a cluster.",
        example="jobset", default=Engine.AUTO.value,
    )
    mounts: tuple[Mount, ...] = key(
        "mounts", Group.VOLUMES, v.ListOf(Mount.parse, text_schema(Mount.PATTERN)),
        "Volume to mount: a claim, a ConfigMap or an empty directory.",
        "pvc=NAME:/PATH[:ro]|configmap=NAME:/PATH|emptydir=SIZE:/PATH", example="['pvc=images:/data:ro']", default=[],
        flag="--mount",
    )
    secrets: tuple[SecretFiles, ...] = key(
        "secrets", Group.VOLUMES, v.ListOf(SecretFiles.parse, text_schema(SecretFiles.PATTERN)),
        "Secret to mount as files.", "NAME:/PATH", example="['hub:/secrets/hub']", default=[], flag="--secret",
    )
    queue: str | None = key(
        "queue", Group.QUEUE, _OBJECT, "Queue of the job: Kueue's, or the gang scheduler's.", "NAME", example="team-a",
        default=None, cluster_only=True,
    )
    queue_priority: str | None = key(
        "queuePriority", Group.QUEUE, _OBJECT, "Priority class in Kueue's queue; --priority is that of the pods.",
        "CLASS", example="urgent", default=None, cluster_only=True,
    )
    queue_resize: QueueResize | None = key(
        "queueResize", Group.QUEUE, v.ChoiceParser(QueueResize, tuple(QueueResize)),
        "Time at which a job in a queue can be resized: at its 'start' (default), or while it is 'running'.", "WHEN",
        example="running", default=None,
    )
    gang: Gang = key(
        "gang", Group.QUEUE, v.ChoiceParser(Gang, tuple(Gang)),
        "Scheduler that starts either the minimum number of nodes together or none.", example="kueue",
        default=Gang.NONE.value, cluster_only=True,
    )
    scheduler: str | None = key(
        "scheduler", Group.QUEUE, _OBJECT, "Scheduler of the workers.", "NAME", example="volcano", default=None,
        otherwise="gang", cluster_only=True,
    )
    topology: tuple[Topology, ...] = key(
        "topology", Group.PLACEMENT, v.ListOf(Topology.parse, text_schema(Topology.PATTERN)),
        "Placement constraint between nodes, by node label.",
        "pack=LABEL[:required]|spread=LABEL[:required]|replica=LABEL", example="['pack=topology.kubernetes.io/zone']",
        default=[], cluster_only=True,
    )
    gpu_type: str | None = key(
        "gpuType", Group.NETWORK, _LABEL, "Product name of the GPUs.", "PRODUCT", example="NVIDIA-H100-80GB-HBM3",
        default=None, cluster_only=True,
    )
    mig: str | None = key(
        "mig", Group.NETWORK, _MIG, "MIG profile of the slice that each node gets instead of a GPU.", "PROFILE",
        example="3g.40gb", default=None,
    )
    rdma: Rdma | None = key(
        "rdma", Group.NETWORK, v.Parsed(Rdma.parse, text_schema(Rdma.PATTERN)), "RDMA devices per node.",
        "RESOURCE[=COUNT]", example="rdma/ib=8", default=None, cluster_only=True,
    )
    networks: tuple[str, ...] = key(
        "networks", Group.NETWORK, v.ListOf(_NETWORK, _NETWORK.schema),
        "Additional network (a NetworkAttachmentDefinition); repeat it to attach it several times.", "[NAMESPACE/]NAME",
        example="[networks/rail-0]", default=[], flag="--network", cluster_only=True,
    )
    fabric: str = key(
        "fabric", Group.NETWORK, v.Parsed(parse_fabric, {"type": "string"}),
        "Network between the GPUs; 'kubectl ddp presets' lists them.", f"NAME|{AUTO}|{NONE}", example="aws-efa",
        default=NONE, otherwise="the nodes", completion=Completion.FABRICS,
    )
    metrics_from: tuple[Reader, ...] = key(
        "metricsFrom", Group.ACCESS, v.ListOf(Reader.parse, v.TEXT, least=1),
        "Additional sources that may scrape metrics.", "NAMESPACE|LABEL=VALUE|CIDR|*",
        example="[monitoring, 10.0.0.0/24]", default=[str(MONITORING)],
    )
    egress: Egress = key(
        "egress", Group.ACCESS, v.ChoiceParser(Egress, tuple(Egress)),
        "Allowed egress of the pods; open is the cluster, and IPv4 without the metadata service.", example="closed",
        default=Egress.OPEN.value,
    )
    dns: tuple[DnsServer, ...] = key(
        "dns", Group.ACCESS, v.ListOf(DnsServer.parse, v.TEXT),
        f"DNS server that pods reach with closed egress ({', '.join(map(str, DEFAULT))}).",
        "NAMESPACE/LABEL=VALUE|CIDR", example="[10.96.0.10]", default=[],
    )
    service_account: str | None = key(
        "serviceAccount", Group.POD, _OBJECT, "Service account of the pods; its token is not mounted.", "NAME",
        example="s3-reader", default=None, cluster_only=True,
    )
    labels: Mapping[str, str] = key(
        "labels", Group.POD, v.MapOf(v.QUALIFIED, "label", _LABEL, _LABEL.schema), "Label of the job and its pods.",
        "KEY=VALUE", example="{team: vision}", default={}, flag="--label",
    )
    annotations: Mapping[str, str] = key(
        "annotations", Group.POD, v.MapOf(v.QUALIFIED, "annotation", v.text, v.TEXT),
        "Annotation of the job and its pods.", "KEY=VALUE", example="{example.com/cost-center: '1234'}", default={},
        flag="--annotation",
    )
    run_as_user: int | str | None = key(
        "runAsUser", Group.POD, UnixId(1), "User id of the pods (default 65532); 'none' leaves it to the platform.",
        "ID|none", example="none", default=None, cluster_only=True,
    )
    run_as_group: int | str | None = key(
        "runAsGroup", Group.POD, UnixId(0), "Group id of the pods.", "ID|none", example="1000", default=None,
        otherwise="runAsUser", cluster_only=True,
    )
    fs_group: int | str | None = key(
        "fsGroup", Group.POD, UnixId(0), "Group id of the files in volumes.", "ID|none", example="1000", default=None,
        otherwise="runAsGroup", cluster_only=True,
    )
    pod_template: Mapping[str, Any] | None = key(
        "podTemplate", Group.POD, POD_TEMPLATE, "Strategic merge patch of the workers' pods, applied last.", "YAML",
        example="{spec: {hostAliases: [{ip: 10.0.0.7, hostnames: [data]}]}}", default=None,
    )
    # fmt: on

    @property
    def largest_pod_count(self) -> int:
        """Number of worker pods at the maximum of nodes, spares included."""
        return self.nnodes.maximum + self.spares

    @property
    def uses_torchrun(self) -> bool:
        """True if torchrun of the image starts the ranks, without a store and a secret of the run."""
        return self.launcher is Launcher.TORCHRUN

    @property
    def has_metrics(self) -> bool:
        """True if the pods serve metrics of their ranks: torchrun's do where the runtime image is mounted."""
        return not self.uses_torchrun or self.runtime_image is not None

    @property
    def largest_world(self) -> int:
        """Number of ranks at the maximum of nodes."""
        return self.nnodes.maximum * self.nproc
