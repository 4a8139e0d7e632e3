"""Values of the Helm chart ``charts/ddp-job`` for a job: :func:`helm_values` resolves, and :func:`to_text` writes them.

The chart places values and computes nothing, so everything that follows from the layout, the fabric, the gang or a
preset is resolved here. A value that equals the chart's default is left out. The release consists of the objects of
:func:`kubectl_ddp.render.render`; ``tests/render/test_job_chart_parity.py`` compares them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from kubectl_ddp.code.archive import Code
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import fabric, failures, gang_scheduling, network, placement, pod, runtime, volumes
from kubectl_ddp.render.gang_scheduling import NATIVE_VERSIONS
from kubectl_ddp.render.objects import engine_of, render
from kubectl_ddp.render.secret import PLACEHOLDER
from kubectl_ddp.render.text import ManifestDumper, represent_text
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.queues import is_kueue_managed
from kubectl_ddp.spec.serialization import spec_to_dict
from kubectl_ddp.values.engine import Engine, QueueResize
from kubectl_ddp.values.node_requirements import Placement
from kubectl_ddp.values.pod import PullPolicy
from kubectl_ddp.values.program import Command, Module, Script

Values = dict[str, Any]

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
DEFAULTS: Final[Mapping[str, Any]] = {
    "engine": "auto",
    "spares": 0,
    "gpus": 0,
    "gpuResource": pod.GPU,
    "imagePullPolicy": PullPolicy.IF_NOT_PRESENT.value,
    "podSecurityContext": {"runAsUser": pod.USER, "runAsGroup": pod.USER, "fsGroup": pod.USER},
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "monitoring"}}}],
        "egress": "open",
        "dns": [
            {
                "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            },
            {"ipBlock": {"cidr": "169.254.20.10/32"}},
        ],
    },
    "jobFile": {"fabric": "none", "gang": "none", "metricsFrom": ["monitoring"]},
}
"""Defaults of the chart that are not empty and need not be repeated; a test compares them with its values.yaml."""


def helm_values(
    spec: JobSpec, code: Code | None = None, api_servers: Sequence[str] = (), native_version: str = NATIVE_VERSIONS[0]
) -> Values:
    """Return the values with which the chart makes the objects of ``spec``, without empty ones and defaults.

    Args:
        spec: The job.
        code: Code to ship.
        api_servers: Addresses of the cluster's API servers, which proxy our metric requests.
        native_version: Served version of Workload and PodGroup, for ``--gang native``.

    Raises:
        UsageError: If the job has a ``podTemplate``, or torchrun as its launcher, which the chart cannot render.
    """
    if spec.uses_torchrun:
        raise UsageError(
            "The chart ddp-job renders jobs of ddp-launch, and the launcher of this one is torchrun.",
            hint="Print its objects with 'kubectl ddp render -o yaml', or leave --launcher out.",
        )
    if spec.pod_template is not None:
        raise UsageError(
            "podTemplate is a patch of rendered objects, and the chart ddp-job renders its own.",
            hint="Print the objects with -o yaml, or use the values of the chart.",
        )
    objects = render(spec, "run", code=code, run_secret=PLACEHOLDER, native_version=native_version)
    values = _without_defaults(
        {
            "name": spec.name,
            "engine": str(spec.engine),
            "image": spec.image,
            "python": spec.python,
            "runtimeImage": spec.runtime_image,
            "runtimeMount": None if spec.runtime_mount is None else str(spec.runtime_mount),
            **_identity(spec),
            **_program(spec, code),
            **_size(spec),
            **_environment(spec),
            **_endings(spec),
            **_volumes(spec),
            **_placement(spec),
            **_scheduling(spec, objects),
            **_devices(spec),
            "networkPolicy": _network(spec, api_servers),
        },
        DEFAULTS,
    )
    job_file = {key: value for key, value in _job_file(spec, values).items() if value != DEFAULTS["jobFile"].get(key)}
    return values | ({"jobFile": job_file} if job_file else {})


def to_text(values: Values) -> str:
    """Return values as YAML that Helm reads without changes; a script is a literal block."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20)


def _without_defaults(values: Values, defaults: Mapping[str, Any]) -> Values:
    """Return the values that differ from their defaults; a default that is not named is empty."""
    kept: Values = {}
    for key, value in values.items():
        default = defaults.get(key)
        inner = _without_defaults(value, default) if isinstance(value, dict) and isinstance(default, Mapping) else value
        is_empty = inner is None or inner in ("", [], {})
        if value != default and (not is_empty or (default and not isinstance(default, Mapping))):
            kept[key] = inner
    return kept


def _identity(spec: JobSpec) -> Values:
    return {
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
        "imagePullPolicy": str(_pod(spec)["pull_policy"]),
        "serviceAccountName": spec.service_account,
        "podSecurityContext": pod.unix_ids(spec),
        "labels": dict(spec.labels),
        "annotations": dict(spec.annotations),
    }


def _program(spec: JobSpec, code: Code | None) -> Values:
    values: Values = {"code": spec.code, "codeClaim": None if spec.code_claim is None else str(spec.code_claim)}
    match spec.program:
        case Script(path):
            values["script"] = path
        case Module(name):
            values["module"] = name
        case Command(words):
            values["command"] = list(words)
    if code is not None:
        values["codeArchive" if code.is_archive else "scriptText"] = code.text
    return values | {"args": list(spec.args)}


def _size(spec: JobSpec) -> Values:
    gpu = f"{pod.MIG}{spec.mig}" if spec.mig else pod.GPU
    resources = _pod(spec)["resources"] | _fabric(spec)["fabric_resources"]
    return {
        "nnodes": str(spec.nnodes) if spec.nnodes.is_elastic else spec.nnodes.maximum,
        "spares": spec.spares,
        "nproc": spec.nproc,
        "gpus": spec.gpus,
        "gpuResource": gpu,
        "cpu": str(spec.cpu),
        "memory": str(spec.memory),
        "shm": str(spec.shm),
        "resources": {name: amount for name, amount in resources.items() if name not in {"cpu", "memory", gpu}},
        "parallel": None if spec.parallel is None else str(spec.parallel),
    }


def _environment(spec: JobSpec) -> Values:
    launch = _fabric(spec)["launch_command"]
    return {
        "env": pod.plain_env(spec, is_local=False),
        "secretEnv": {name: {"name": entry.secret, "key": entry.key} for name, entry in spec.secret_env.items()},
        "envFrom": _pod(spec)["env_from"],
        "launcher": [] if launch == runtime.command(spec, runtime.LAUNCH, is_local=False) else launch,
    }


def _endings(spec: JobSpec) -> Values:
    return {
        "maxRestarts": spec.max_restarts,
        "backoffLimit": failures.backoff_limit(spec),
        "terminationGracePeriodSeconds": spec.grace_seconds,
        "activeDeadlineSeconds": spec.deadline_seconds,
        "ttlSecondsAfterFinished": spec.ttl_seconds,
    }


def _volumes(spec: JobSpec) -> Values:
    more = volumes.view(spec, is_local=False)
    return {
        "checkpointClaim": spec.checkpoint_claim,
        "volumes": more["more_volumes"],
        "volumeMounts": more["more_mounts"],
        "initContainers": _pod(spec)["more_inits"],
    }


def _placement(spec: JobSpec) -> Values:
    view = placement.view(spec, {}, _fabric(spec)["node_labels"])
    topology = {
        place: [
            {"topologyKey": wish.key} | ({"required": True} if wish.required else {})
            for wish in spec.topology
            if wish.placement is place
        ]
        for place in (Placement.PACK, Placement.SPREAD)
    }
    store_selector = _pod(spec)["store_selector"]
    return {
        "priorityClassName": spec.priority,
        "nodeSelector": view["node_selector"],
        "tolerations": _pod(spec)["tolerations"],
        # Affinity to the run's own pods is made by the chart, which knows the run id.
        "affinity": {
            key: value
            for key, value in view["affinity"].items()
            if key != "podAffinity" or key in (spec.affinity or {})
        },
        "topology": {str(place): wishes for place, wishes in topology.items() if wishes},
        "store": {"nodeSelector": store_selector} if store_selector else {},
    }


def _scheduling(spec: JobSpec, objects: Sequence[Object]) -> Values:
    view = gang_scheduling.view(spec, engine_of(spec))
    gang = view["together"]
    policy = job_kinds.at(job_kinds.root_of(list(objects)), ("spec", "runPolicy", "schedulingPolicy"))
    groups = [_pod_group(item) for item in objects if item["kind"] == "PodGroup"]
    is_kueue = is_kueue_managed(spec)
    resizes = is_kueue and any(gang_scheduling.gang_metadata(spec, engine).annotations for engine in Engine)
    elastic = spec.queue_resize is QueueResize.RUNNING
    return {
        "schedulerName": view["scheduler"],
        "kueue": _without_defaults(
            {
                "queue": spec.queue,
                "priorityClass": spec.queue_priority,
                "partialAdmission": resizes and not elastic,
                "elastic": elastic,
            },
            {"partialAdmission": False, "elastic": False},
        )
        if is_kueue
        else {},
        "podGroup": groups[0] if groups else {},
        "schedulingPolicy": policy or {},
        "jobLabels": {} if is_kueue else dict(gang.labels),
        "jobAnnotations": {} if is_kueue else dict(gang.annotations),
        "podLabels": dict(gang.pod_labels),
        "podAnnotations": {**gang.pod_annotations, **_fabric(spec)["fabric_annotations"]},
    }


def _pod_group(item: Object) -> Values:
    """Return a PodGroup for the chart, which places the Workload of a native one, and the reference to it."""
    spec = {key: value for key, value in item["spec"].items() if key not in gang_scheduling.NATIVE_REFERENCES}
    return {"apiVersion": item["apiVersion"], "spec": spec}


def _devices(spec: JobSpec) -> Values:
    nodes = _fabric(spec)["compute_domain_nodes"]
    return {
        "deviceRequests": [{"name": "devices", "exactly": request} for request in _fabric(spec)["devices"]],
        "computeDomain": {} if nodes is None else {"numNodes": nodes},
    }


def _network(spec: JobSpec, api_servers: Sequence[str]) -> Values:
    view = network.view(spec, ())
    return {
        "metricsFrom": view["metrics_peers"],
        "apiServers": [str(ipaddress.ip_network(address)) for address in api_servers],
        "egress": str(spec.egress),
        "dns": view["dns_peers"],
    }


def _job_file(spec: JobSpec, values: Values) -> Values:
    """Return the keys of the job file that the chart reads wrongly, or not at all, from ``values``."""
    document = spec_to_dict(spec)
    read = _read_by_the_chart(values)
    wrong = {key: value for key, value in document.items() if read.get(key) != value}
    return wrong | {key: {} for key in read if key not in document}


def _read_by_the_chart(values: Values) -> Values:
    """Return the job file that the chart writes into the annotation ``ddp.dev/spec``, as ``ddp-job.document`` does."""
    kueue, policy = values.get("kueue", {}), values.get("networkPolicy", {})
    secret_env = values.get("secretEnv", {})
    program = ("script", "code", "codeClaim", "module", "command", "args")
    same = (
        *("name", "image", "python", "runtimeImage", "runtimeMount", *program),
        *("nproc", "cpu", "memory", "shm", "parallel"),
    )
    document = {
        **{key: values.get(key) for key in (*same, "env", "maxRestarts", "checkpointClaim", "nodeSelector")},
        "apiVersion": "ddp.dev/v1",
        "kind": "Job",
        "engine": values.get("engine", DEFAULTS["engine"]),
        "nnodes": str(values["nnodes"]),
        "gpus": values.get("gpus", 0),
        "spares": values.get("spares", 0),
        "grace": values["terminationGracePeriodSeconds"],
        "deadline": values.get("activeDeadlineSeconds"),
        "ttl": values.get("ttlSecondsAfterFinished"),
        "priority": values.get("priorityClassName"),
        "secretEnv": {name: f"{entry['name']}:{entry['key']}" for name, entry in secret_env.items()},
        "queue": kueue.get("queue"),
        "queuePriority": kueue.get("priorityClass"),
        "queueResize": QueueResize.RUNNING.value if kueue.get("elastic") else None,
        "egress": policy.get("egress", "open"),
    }
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def _pod(spec: JobSpec) -> Mapping[str, Any]:
    return pod.view(spec, "", is_local=False)


def _fabric(spec: JobSpec) -> Mapping[str, Any]:
    return fabric.view(spec, is_local=False)


class _Dumper(ManifestDumper):
    """Dumper that writes text of several lines as a literal block if every reader of YAML returns it unchanged."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text[:-1] and all(letter == "\n" or letter.isprintable() for letter in text):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    return represent_text(dumper, text)


_Dumper.add_representer(str, _text)
