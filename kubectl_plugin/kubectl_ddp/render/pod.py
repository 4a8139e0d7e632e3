"""Pod templates: command lines, environment, resources, security, additional volumes, node labels and topology.

The launcher of a worker is ``ddp-launch`` with the store of the job, or torchrun of the image. On every engine a lost
pod is replaced, and a failed program fails the job.

The target ``runtime`` of the Dockerfile makes the runtime image: the launcher, without an interpreter, for pods whose
own image does not hold it. :func:`command` returns the words that start the launcher, and :func:`runtime_view` the
volume that holds it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, Final

from ddp_trainer.common.constants import GROUP, SECRET_KEY, CheckpointScope, Env, Exit, Path, Port
from kubectl_ddp.engines import EngineKind
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import REQUIRED
from kubectl_ddp.values.parsers import EnvSource, Toleration
from kubectl_ddp.values.pod import GPU_PRODUCT, NONE, Mount, Placement, PullPolicy, RuntimeMount, VolumeSource
from kubectl_ddp.values.program import Command, Module, Script

LAUNCH: Final = "launch"
STORE: Final = "store"
LAUNCHER: Final = "ddp-launch"
"""Console script of an image that holds the launcher."""
TORCHRUN_HOOKS: Final = "ddp_trainer/launch/in_worker/python_path"
"""Directory of the runtime whose ``sitecustomize`` counts the steps of a rank."""
TORCHRUN: Final = f"""\
import os, runpy, subprocess, sys
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError
if "{Env.METRICS_DIR}" in os.environ:
    subprocess.Popen([sys.executable, "{Path.RUNTIME}", "aggregate"])
    paths = os.environ.get("PYTHONPATH"), "{Path.RUNTIME}/{TORCHRUN_HOOKS}", "{Path.RUNTIME}"
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
except SignalException as stop:
    sys.exit({Exit.SIGNAL_BASE:d} + stop.sigval)
except RendezvousError as lost:
    print("torchrun:", repr(lost), file=sys.stderr)
    sys.exit({Exit.RENDEZVOUS_LOST:d})
"""
"""Program that runs torchrun. torchrun exits with 1 also where its pod was stopped or has lost worker 0, and engines
would then end the job. Where the runtime is mounted, it also serves the metrics of the ranks.
"""
PYTHON3: Final = "python3"
RUNTIME_VOLUME: Final = "runtime"
_TOOLS: Final = "/copy"
"""Directory of the runtime image with a program that copies, and its libraries."""
COPY: Final = (
    *(f"{_TOOLS}/ld.so", "--library-path", _TOOLS, f"{_TOOLS}/cp"),
    *("--recursive", "/__main__.py", "/ddp_preflight", "/ddp_trainer", "/ddp_workloads", str(Path.RUNTIME)),
)

LOG_PREFIX: Final = "[rank${rank}] "
"""Value of torchrun's ``--log-line-prefix-template`` in every pod: each log line begins with its rank."""


def interpreter(spec: JobSpec) -> str:
    """Return the Python of the job's image. Images of others often have no ``python``."""
    return spec.python or (PYTHON3 if spec.runtime_image or spec.uses_torchrun else "python")


def command(spec: JobSpec, name: str, *, is_local: bool) -> list[str]:
    """Return the words that start a command of ``ddp_trainer``, or the launcher of the job, in a pod."""
    if name == LAUNCH and spec.uses_torchrun:
        return ["python" if is_local else interpreter(spec), "-c", TORCHRUN, "torch.distributed.run"]
    if spec.runtime_image and not is_local:
        return [interpreter(spec), str(Path.RUNTIME), name]
    if name == LAUNCH and (spec.python is None or is_local):
        return [LAUNCHER]
    return ["python" if is_local else interpreter(spec), "-m", "ddp_trainer", name]


def command_prefix(job: Object, name: str) -> tuple[str, ...]:
    """Return the words that start a command of ``ddp_trainer`` in a running pod; empty if the pod's image holds it."""
    spec = job_kinds.submitted_spec(job)
    return (str(spec.get("python") or PYTHON3), str(Path.RUNTIME), name) if spec.get("runtimeImage") else ()


def runtime_view(spec: JobSpec, pull_policy: PullPolicy, *, is_local: bool) -> dict[str, Any]:
    """Return the values for the templates: volume and mount of the runtime image, and the container that copies it."""
    image = None if is_local else spec.runtime_image
    is_copied = image is not None and spec.runtime_mount is not RuntimeMount.IMAGE
    source = {"emptyDir": {}} if is_copied else {"image": {"reference": image, "pullPolicy": pull_policy.value}}
    return {
        "store_command": command(spec, STORE, is_local=is_local),
        "runtime_copy": COPY if is_copied else None,
        "runtime_volume": {"name": RUNTIME_VOLUME, **source} if image else None,
        "runtime_mount": {"name": RUNTIME_VOLUME, "mountPath": str(Path.RUNTIME)},
    }


READABLE_BY_GROUP: Final = 0o440
"""Mode of a Secret's files: readable by the pod's group."""

_PACKAGES: Final[tuple[str, dict[str, Any], dict[str, Any]]] = (
    "packages",
    {"emptyDir": {}},
    {"mountPath": str(Path.PACKAGES)},
)


def volumes_view(spec: JobSpec, *, is_local: bool) -> dict[str, Any]:
    """Return the additional volumes and their mounts for the pod template."""
    volumes, mounts = [], []
    packages = () if is_local or spec.requirements is None else (_PACKAGES,)
    for name, source, mount in (*_mounts(spec), *_secrets(spec), *_compile_cache(spec), *packages):
        volumes.append({"name": name, **source})
        mounts.append({"name": name, **mount})
    return {"more_volumes": volumes, "more_mounts": mounts}


def _mounts(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for number, mount in enumerate(spec.mounts):
        options = {"readOnly": True} if mount.read_only or mount.source is VolumeSource.CONFIG_MAP else {}
        yield f"mount-{number}", VOLUMES[mount.source](mount), {"mountPath": mount.path, **options}


def _secrets(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for number, files in enumerate(spec.secrets):
        source = {"secret": {"secretName": files.secret, "defaultMode": READABLE_BY_GROUP}}
        yield f"secret-{number}", source, {"mountPath": files.path, "readOnly": True}


def _compile_cache(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    if spec.compile_cache is not None and compile_cache_directory(spec) == Path.COMPILE_CACHE:
        source = {"persistentVolumeClaim": {"claimName": spec.compile_cache}}
        yield "compile-cache", source, {"mountPath": str(Path.COMPILE_CACHE)}


def compile_cache_directory(spec: JobSpec) -> str | None:
    """Return the directory of the compile cache in the pod, or None without one."""
    if spec.compile_cache is None or spec.compile_cache.startswith("/"):
        return spec.compile_cache
    return str(Path.COMPILE_CACHE)


VOLUMES: Final[Mapping[VolumeSource, Callable[[Mount], dict[str, Any]]]] = {
    VolumeSource.CLAIM: lambda mount: {
        "persistentVolumeClaim": {"claimName": mount.name} | ({"readOnly": True} if mount.read_only else {})
    },
    VolumeSource.CONFIG_MAP: lambda mount: {"configMap": {"name": mount.name}},
    VolumeSource.EMPTY: lambda mount: {"emptyDir": {"sizeLimit": mount.name}},
}


USER: Final = 65532
"""User and group id in all our images; numeric, because ``runAsNonRoot`` cannot check names."""
GPU: Final = "nvidia.com/gpu"
MIG: Final = "nvidia.com/mig-"
"""Prefix of the resource name of a MIG slice."""
PLACE_LABELS: Final = ("kubernetes.io/arch", "kubernetes.io/os", "topology.kubernetes.io/")
"""Node selector labels that also apply to the store; most others select GPU nodes, which it does not need."""

USER_NAME: Final = "ddp"
NEVER_READY: Final = f"{GROUP}/moves-at-once"
"""Readiness gate of the store that never becomes true."""
OF_DDP_LAUNCH: Final = frozenset({Env.SECRET_FILE, Env.TERMINATION_LOG, Env.RESTART_IN_PLACE})
"""Variables of a worker pod that ``ddp-launch`` alone reads."""
TORCHRUN_PREFIX: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""Variable of torchrun with the template that ``ddp-launch`` has as a flag."""
_UNPACK: Final = (
    "import glob, io, sys, tarfile; parts = sorted(glob.glob(sys.argv[1] + '/*')); "
    "data = io.BytesIO(b''.join(open(part, 'rb').read() for part in parts)); "
    "tarfile.open(fileobj=data).extractall(sys.argv[2])"
)
UNPACK: Final = ("-W", "ignore", "-c", _UNPACK, str(Path.CODE_ARCHIVE), str(Path.CODE))
"""Arguments with which Python unpacks the parts of the shipped code before the program starts."""

CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def unix_ids(spec: JobSpec) -> dict[str, int | str]:
    """Return the user and group ids of the pods; ``none`` for those that the platform chooses."""
    user = USER if spec.run_as_user is None else spec.run_as_user
    group = user if spec.run_as_group is None else spec.run_as_group
    return {"runAsUser": user, "runAsGroup": group, "fsGroup": group if spec.fs_group is None else spec.fs_group}


def _pod_security(spec: JobSpec) -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        **{name: number for name, number in unix_ids(spec).items() if number != NONE},
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_view(spec: JobSpec, run_id: str, *, is_local: bool) -> dict[str, Any]:
    """Return the pod settings for the templates."""
    pull_policy = spec.image_pull_policy or PullPolicy.IF_NOT_PRESENT
    return runtime_view(spec, pull_policy, is_local=is_local) | {
        "worker_env": _worker_environment(spec, run_id, is_local=is_local),
        "store_env": [*_identity(spec, run_id), _variable("PYTHONUNBUFFERED", "1")],
        "env_from": [] if is_local else [_source(source) for source in spec.env_from],
        "resources": _resources(spec),
        "unpack_resources": {"cpu": str(spec.cpu), "memory": str(spec.memory)},
        "more_inits": [] if is_local or spec.requirements is None else [_install(spec, pull_policy)],
        "unpack_command": ["python" if is_local else interpreter(spec), *UNPACK],
        "tolerations": [_toleration(toleration) for toleration in spec.tolerations],
        "store_selector": {key: value for key, value in spec.node_selector.items() if key.startswith(PLACE_LABELS)},
        "node_loss": _node_loss,
        "never_ready": NEVER_READY,
        "pod_security": _pod_security(spec),
        "pull_secrets": [{"name": name} for name in spec.image_pull_secrets],
        "pull_policy": pull_policy,
        "container_security": CONTAINER_SECURITY,
    }


def _identity(spec: JobSpec, run_id: str) -> list[dict[str, Any]]:
    """Return the variables that identify a pod, for every pod of the job."""
    return [
        _variable(Env.JOB, spec.name),
        _variable(Env.RUN_ID, run_id),
        _variable(Env.SECRET_FILE, f"{Path.SECRET}/{SECRET_KEY}"),
        _field_ref_env(Env.NAMESPACE, "metadata.namespace"),
        _field_ref_env(Env.POD_NAME, "metadata.name"),
        _field_ref_env(Env.POD_IP, "status.podIP"),
        _field_ref_env(Env.NODE_NAME, "spec.nodeName"),
    ]


def _worker_environment(spec: JobSpec, run_id: str, *, is_local: bool) -> list[dict[str, Any]]:
    """Return our variables, then the user's; each name occurs once, since server-side apply rejects duplicates."""
    # An image of the user's may have no entry for the number of the user, and Python then asks these variables.
    name = spec.env.get("LOGNAME") or spec.env.get("USER") or USER_NAME  # getpass.getuser reads LOGNAME first
    person = {"HOME": str(Path.SCRATCH), "USER": name, "LOGNAME": name}
    home = [] if is_local else [_variable(name, value) for name, value in person.items()]
    contract = _contract_env(spec, run_id)
    if spec.uses_torchrun:
        left_out = OF_DDP_LAUNCH if spec.has_metrics else OF_DDP_LAUNCH | {Env.METRICS_PORT}
        contract = [variable for variable in contract if variable["name"] not in left_out]
        contract += [_variable(Env.METRICS_DIR, Path.METRICS_DIR)] if spec.has_metrics and not is_local else []
        contract.append(_variable(TORCHRUN_PREFIX, LOG_PREFIX))
    variables = [*contract, *home, *_users(spec, is_local=is_local)]
    return list({variable["name"]: variable for variable in variables}.values())


def _contract_env(spec: JobSpec, run_id: str) -> list[dict[str, Any]]:
    """Return the variables that the contract guarantees to a worker pod."""
    scope = CheckpointScope.JOB if spec.checkpoint_claim else CheckpointScope.POD
    return [
        *_identity(spec, run_id),
        _variable(Env.RUN_DIR, Path.RUN_DIR),
        _variable(Env.CHECKPOINT_DIR, Path.CHECKPOINT_DIR),
        _variable(Env.CHECKPOINT_SCOPE, scope),
        _variable(Env.METRICS_PORT, str(int(Port.METRICS))),
        _variable(Env.TERMINATION_LOG, Path.TERMINATION_LOG),
        _variable(Env.GRACE_SECONDS, str(spec.grace_seconds)),
        _variable(Env.SHARE_STORE_OFF, "1"),
        _variable(Env.RESTART_IN_PLACE, "1"),
        *([_variable(Env.PARALLEL, str(spec.parallel))] if spec.parallel is not None else []),
    ]


def _users(spec: JobSpec, *, is_local: bool) -> list[dict[str, Any]]:
    """Return the user's variables sorted by name, the only order that clones and chart values can reproduce."""
    secrets = [] if is_local else sorted(spec.secret_env.items())
    return [
        *(_variable(name, literal(value)) for name, value in sorted(plain_env(spec, is_local=is_local).items())),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": entry.secret, "key": entry.key}}}
            for name, entry in secrets
        ),
    ]


def _install(spec: JobSpec, pull_policy: PullPolicy) -> dict[str, Any]:
    """Return the init container that installs the requirements, with the user's variables, such as pip's own."""
    mounts = [{"name": "scratch", "mountPath": str(Path.SCRATCH)}, *volumes_view(spec, is_local=False)["more_mounts"]]
    if spec.runtime_image:
        mounts.append({"name": RUNTIME_VOLUME, "mountPath": str(Path.RUNTIME), "readOnly": True})
    sizes = {"cpu": str(spec.cpu), "memory": str(spec.memory)}
    more = {"envFrom": [_source(source) for source in spec.env_from]} if spec.env_from else {}
    variables = [
        _variable(Env.REQUIREMENTS, literal("\n".join(spec.requirements or ()))),
        _variable("HOME", spec.env.get("HOME") or Path.SCRATCH),
        *(variable for variable in _users(spec, is_local=False) if variable["name"] != "HOME"),
    ]
    return {
        "name": "install-packages",
        "image": spec.image,
        "imagePullPolicy": pull_policy.value,
        "command": command(spec, "install", is_local=False),
        "env": variables,
        **more,
        "resources": {"requests": sizes, "limits": sizes},
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def plain_env(spec: JobSpec, *, is_local: bool) -> dict[str, str]:
    """Return the literal variables that keys of the job set: ``env``, ``compileCache`` and others."""
    cache = compile_cache_directory(spec)
    of_keys = {
        Env.COMPILE_CACHE: cache,
        Env.TORCHRUN_SHIM: "1" if spec.torchrun_shim else None,
        Env.PACKAGES: None if is_local or spec.requirements is None else str(Path.PACKAGES),
    }
    return dict(spec.env) | {str(name): value for name, value in of_keys.items() if value is not None}


def literal(text: str) -> str:
    """Escape text so that the kubelet's ``$(NAME)`` expansion returns it unchanged.

    >>> literal("$HOME costs $$5 or $(PRICE)")
    '$$HOME costs $$$$5 or $$(PRICE)'
    >>> literal("[rank${rank}] $HOME")
    '[rank${rank}] $HOME'
    """
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


def _variable(name: str, value: str) -> dict[str, Any]:
    return {"name": str(name), "value": str(value)}


def _field_ref_env(name: str, field: str) -> dict[str, Any]:
    return {"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _source(source: EnvSource) -> dict[str, Any]:
    return {{"secret": "secretRef", "configmap": "configMapRef"}[source.kind]: {"name": source.name}}


def _resources(spec: JobSpec) -> dict[str, str]:
    gpu = f"{MIG}{spec.mig}" if spec.mig else GPU
    gpus = {gpu: str(spec.gpus)} if spec.gpus else {}
    rdma = {spec.rdma.resource: str(spec.rdma.count)} if spec.rdma else {}
    return {"cpu": str(spec.cpu), "memory": str(spec.memory)} | gpus | rdma


def _toleration(toleration: Toleration) -> dict[str, Any]:
    fields = {key: str(value) for key, value in asdict(toleration).items() if value}
    return fields | {"operator": "Equal" if toleration.value else "Exists"}


def _node_loss(seconds: int) -> list[dict[str, Any]]:
    """Return tolerations that keep a pod on an unreachable node for this time."""
    return [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for condition in ("not-ready", "unreachable")
    ]


def placement_view(spec: JobSpec, pod_labels: Mapping[str, str], node_labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the placement settings for the pod template.

    Args:
        spec: The job.
        pod_labels: Labels that all its worker pods share.
        node_labels: Labels that a node must have, with any value.
    """
    product = {GPU_PRODUCT: spec.gpu_type} if spec.gpu_type else {}
    return {
        "node_selector": {**spec.node_selector, **product},
        "affinity": {**(spec.affinity or {}), **_affinity(spec, pod_labels), **_node_affinity(spec, node_labels)},
        "spread": _spread_constraints(spec, pod_labels),
    }


def _affinity(spec: JobSpec, pod_labels: Mapping[str, str]) -> dict[str, Any]:
    """Return affinity that places a pod next to others of its job.

    Kubernetes accepts the first pod without any others.
    """
    terms = {
        required: [
            {"topologyKey": wish.key, "labelSelector": {"matchLabels": dict(pod_labels)}}
            for wish in spec.topology
            if wish.placement is Placement.PACK and wish.required is required
        ]
        for required in (True, False)
    }
    found: dict[str, Any] = {}
    if terms[True]:
        found[REQUIRED] = terms[True]
    if terms[False]:
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "podAffinityTerm": term} for term in terms[False]
        ]
    return {"podAffinity": found} if found else {}


def _node_affinity(spec: JobSpec, labels: Sequence[str]) -> dict[str, Any]:
    """Return the job's affinity for nodes, of which every alternative also wants these labels, with any value."""
    if not labels:
        return {}
    chosen = (spec.affinity or {}).get("nodeAffinity") or {}
    terms = (chosen.get(REQUIRED) or {"nodeSelectorTerms": [{}]})["nodeSelectorTerms"]
    exists = [{"key": label, "operator": "Exists"} for label in labels]
    combined = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *exists]} for term in terms]
    return {"nodeAffinity": {**chosen, REQUIRED: {"nodeSelectorTerms": combined}}}


def _spread_constraints(spec: JobSpec, pod_labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": wish.key,
            "whenUnsatisfiable": "DoNotSchedule" if wish.required else "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(pod_labels)},
        }
        for wish in spec.topology
        if wish.placement is Placement.SPREAD
    ]


LARGEST_LIMIT: Final = 2**31 - 1


def failures_view(spec: JobSpec, container: str) -> dict[str, Any]:
    """Return the failure settings for the templates."""
    return {"backoff_limit": backoff_limit(spec), "pod_failure_policy": pod_failure_policy(container)}


def backoff_limit(spec: JobSpec) -> int:
    """Return the number of lost pods that a job survives; an incident that affects every node counts once per node."""
    return min(LARGEST_LIMIT, spec.largest_pod_count * max(1, spec.max_restarts))


def pod_failure_policy(container: str) -> dict[str, Any]:
    """Return the exit code rules as a batch/v1 pod failure policy; the operator's ``ExitCode`` is equivalent.

    A pod that was evicted, preempted or removed from its node does not count, whatever its exit code. Codes from 128
    count, and the pod is replaced.
    """
    permanent = list(range(1, Exit.SIGNAL_BASE))
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": container, "operator": "In", "values": permanent},
            },
        ]
    }


START_SECONDS: Final = 600
"""Longest wait of torchrun's nodes for worker 0, as for the other nodes of the group. torch's default is 60."""
TORCHRUN_FLAGS: Final = (
    f"--rdzv-conf=read_timeout={START_SECONDS},join_timeout={START_SECONDS}",
    f"--local-addr=$({Env.POD_IP})",
)
"""Flags of torchrun alone. Peers reach a node by its address, since not every engine gives pods a name in DNS."""
_LOCAL_PORTS: Final = range(20000, 28000)
"""Ports of torchrun's store on this machine, where it listens at all addresses: every run has another one."""


def launch_view(spec: JobSpec, run_id: str, engine: EngineKind, *, is_local: bool) -> dict[str, Any]:
    """Return the arguments of launcher and store, and the place of the rendezvous, for the templates."""
    store = f"{spec.name}-store"
    store_port = Port.LOCAL_RENDEZVOUS if is_local else Port.RENDEZVOUS
    if spec.uses_torchrun:
        host, port = engine.first_host(spec.name), _local_port(run_id) if is_local else Port.RENDEZVOUS
        backend, flags = "c10d", [*TORCHRUN_FLAGS]
    else:
        host, port = store, store_port
        backend, flags = "ddp", [f"--log-line-prefix-template={LOG_PREFIX}"]
    arguments = [
        f"--nnodes={spec.nnodes.minimum}:{spec.nnodes.maximum}",
        f"--nproc-per-node={spec.nproc}",
        f"--rdzv-backend={backend}",
        f"--rdzv-endpoint={host}:{port:d}",
        f"--rdzv-id={run_id}",
        f"--max-restarts={spec.max_restarts}",
        "--tee=3",
        *flags,
    ]
    return {
        "launch_arguments": [*arguments, *map(literal, _program(spec, is_local=is_local))],
        "store_arguments": ["--port", f"{store_port:d}"],
        "names": {"store": store, "rendezvous": host},
    }


def _local_port(run_id: str) -> int:
    return _LOCAL_PORTS[zlib.crc32(run_id.encode()) % len(_LOCAL_PORTS)]


def _program(spec: JobSpec, *, is_local: bool) -> list[str]:
    match spec.program:
        case Script(path) if spec.code is not None or spec.code_claim is not None:
            start = [str(PurePosixPath(Path.CODE) / path)]
        case Script(path):
            start = [path if is_local else str(PurePosixPath(Path.CODE) / PurePosixPath(path).name)]
        case Module(name):
            start = ["-m", name]
        case Command(words):
            start = ["--no-python", *words]
    return [*start, *spec.args]
