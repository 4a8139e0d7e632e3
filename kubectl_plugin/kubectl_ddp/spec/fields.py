"""Keys of a job file, which are the flags in camelCase: the one table for flags, files and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.common.parallel_dims import WRITTEN
from kubectl_ddp.fabrics.registry import AUTO, NONE
from kubectl_ddp.spec.fabric import parse_fabric
from kubectl_ddp.spec.layout import parse_layouts
from kubectl_ddp.values import parsers as v
from kubectl_ddp.values.dns import DEFAULT, DnsServer
from kubectl_ddp.values.engine import Engine, Gang
from kubectl_ddp.values.metrics_ingress import parse_ingress_peers
from kubectl_ddp.values.node_requirements import MIG_PROFILE, Rdma, Topology
from kubectl_ddp.values.parsers import Egress, EnvSource, Raw, SecretKey, Toleration
from kubectl_ddp.values.quantity import Cpu, Memory, Nodes, parse_seconds
from kubectl_ddp.values.volumes import Mount, SecretFiles


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a job file."""

    attribute: str
    """Name in JobSpec; ``program`` for the three keys of the program."""
    parse: Callable[[Raw], Any]
    """Parser for a flag's text or a value of a file or JSON. Raises BadValue."""
    help: str
    metavar: str
    is_map: bool = False
    """True if given entry by entry, ``KEY=VALUE``; the entries of all sources are merged."""
    is_list: bool = False
    """True if the flag can be repeated; a stronger source replaces the whole list."""
    is_closed: bool = False
    """True if the value is one of the words of ``metavar``, for completion."""


VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_name = v.Matching(
    r"[a-z]([-a-z0-9]*[a-z0-9])?",
    "no name for a job",
    "Use lower case letters, digits and dashes, begin with a letter and do not end with a dash.",
)
_namespace = v.Matching(rf"(?=.{{1,63}}$){v.LABEL}", "no namespace", "Use lower case letters, digits and dashes.")
_object = v.Matching(
    rf"(?=.{{1,253}}$){v.SUBDOMAIN}", "no name of an object", "Use lower case letters, digits, '-' and '.'."
)
_image = v.Matching(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", "no image", "Write it as 'registry/name:version'.")
_module = v.Matching(rf"{VARIABLE}(\.{VARIABLE})*", "no Python module", "Write it as after 'python -m'.")
LABEL: Final = v.Matching(v.LABEL_VALUE, "no value of a label", "Use letters, digits, '-', '_' and '.'.")
_mig = v.Matching(MIG_PROFILE, "no MIG profile", "Write it as 'nvidia-smi mig -lgip' does, as in '3g.40gb'.")
NETWORK: Final = v.Matching(
    rf"({v.LABEL}/)?{v.SUBDOMAIN}(@[a-z][-a-z0-9]{{0,14}})?",
    "no network",
    "Name a NetworkAttachmentDefinition, as in 'rdma-vf' or 'networks/rail-0'.",
)
_path = v.Matching(r"(?s).+", "no path", "Name a file.")

FIELDS: Final[Mapping[str, Field]] = {
    "name": Field("name", _name, "Name of the job; made from the program when left out.", "NAME"),
    "namespace": Field("namespace", _namespace, "Namespace of the job.", "NAME"),
    "script": Field("program", _path, "Python file of this machine to run; it travels with the job.", "FILE"),
    "code": Field(
        "code", _path, "Directory of this machine that travels with the job, but for what .gitignore names.", "DIR"
    ),
    "module": Field("program", _module, "Python module of the image to run, as 'python -m' does.", "MODULE"),
    "command": Field("program", v.parse_command, "Command of the image to run instead of Python.", "WORDS"),
    "args": Field("args", v.text_list, "Arguments of the program.", "WORDS", is_list=True),
    "nnodes": Field("nnodes", v.parsed(Nodes.parse), "Nodes: N, or MIN:MAX for an elastic job.", "N|MIN:MAX"),
    "nproc": Field("nproc", v.process_count, "Processes per node; one per GPU when left out.", "N"),
    "parallel": Field(
        "parallel",
        v.parsed(parse_layouts),
        "How ranks share one model; a size is N, or MIN:MAX in an elastic job; 'auto' has submit make a plan.",
        ",".join(f"{name}=N" for name in WRITTEN),
    ),
    "gpus": Field("gpus", v.IntRange(0, 64), "GPUs per node.", "N"),
    "cpu": Field("cpu", v.parsed(Cpu.parse), "Cores per node.", "CORES"),
    "memory": Field("memory", v.parsed(Memory.parse), "Memory per node.", "SIZE"),
    "shm": Field("shm", v.parsed(Memory.parse), "Size of /dev/shm, part of the memory.", "SIZE"),
    "image": Field("image", _image, "Container image; $KUBECTL_DDP_IMAGE sets the default.", "IMAGE"),
    "env": Field(
        "env", v.table(VARIABLE, "environment variable", v.text), "Environment variable.", "NAME=VALUE", is_map=True
    ),
    "secretEnv": Field(
        "secret_env",
        v.table(VARIABLE, "environment variable", v.parsed(SecretKey.parse)),
        "Environment variable whose value stays in a Secret.",
        "NAME=SECRET:KEY",
        is_map=True,
    ),
    "envFrom": Field(
        "env_from", v.each(EnvSource.parse), "All entries as variables.", "secret/NAME|configmap/NAME", is_list=True
    ),
    "maxRestarts": Field("max_restarts", v.IntRange(0, 10_000), "Restarts after failures, over the whole job.", "N"),
    "grace": Field("grace_seconds", v.parsed(parse_seconds), "Time from SIGTERM to SIGKILL.", "TIME"),
    "checkpointClaim": Field(
        "checkpoint_claim", _object, "Shared volume for checkpoints (a PersistentVolumeClaim).", "CLAIM"
    ),
    "deadline": Field("deadline_seconds", v.parsed(parse_seconds), "Stop the job after this time.", "TIME"),
    "ttl": Field("ttl_seconds", v.parsed(parse_seconds), "Keep the finished job this long.", "TIME"),
    "priority": Field("priority", _object, "Priority class.", "CLASS"),
    "nodeSelector": Field(
        "node_selector",
        v.table(v.QUALIFIED, "label", LABEL),
        "Label that a machine must have.",
        "KEY=VALUE",
        is_map=True,
    ),
    "tolerations": Field(
        "tolerations",
        v.each(Toleration.parse),
        "Taint that the job does not mind.",
        "KEY[=VALUE][:EFFECT]",
        is_list=True,
    ),
    "engine": Field(
        "engine", v.Choice(Engine, tuple(Engine)), "What runs it on a cluster.", "|".join(Engine), is_closed=True
    ),
    "mounts": Field(
        "mounts",
        v.each(Mount.parse),
        "Volume to mount: a claim, a ConfigMap or an empty directory.",
        "pvc=NAME:/PATH[:ro]|configmap=NAME:/PATH|emptydir=SIZE:/PATH",
        is_list=True,
    ),
    "secrets": Field("secrets", v.each(SecretFiles.parse), "Secret to mount as files.", "NAME:/PATH", is_list=True),
    "queue": Field("queue", _object, "Queue to wait in: Kueue's, or that of the gang's scheduler.", "NAME"),
    "queuePriority": Field(
        "queue_priority",
        _object,
        "Priority in Kueue's queue (a WorkloadPriorityClass); that of the pods is --priority.",
        "CLASS",
    ),
    "gang": Field(
        "gang",
        v.Choice(Gang, tuple(Gang)),
        "Who starts the least number of nodes together, or none.",
        "|".join(Gang),
        is_closed=True,
    ),
    "scheduler": Field("scheduler", _object, "Scheduler of the workers; the gang's own when left out.", "NAME"),
    "topology": Field(
        "topology",
        v.each(Topology.parse),
        "Where the nodes lie to each other, by a label of their machines.",
        "pack=LABEL[:required]|spread=LABEL[:required]|replica=LABEL",
        is_list=True,
    ),
    "gpuType": Field("gpu_type", LABEL, "Product of the GPUs, as in 'NVIDIA-H100-80GB-HBM3'.", "PRODUCT"),
    "mig": Field("mig", _mig, "MIG slice for each node instead of a GPU, as in '3g.40gb'.", "PROFILE"),
    "rdma": Field("rdma", v.parsed(Rdma.parse), "RDMA devices of each node, as in 'rdma/ib=8'.", "RESOURCE[=COUNT]"),
    "networks": Field(
        "networks",
        v.each(NETWORK),
        "Network to attach beside the cluster's own (a NetworkAttachmentDefinition).",
        "[NAMESPACE/]NAME",
        is_list=True,
    ),
    "fabric": Field(
        "fabric",
        parse_fabric,
        "Network between the GPUs; 'kubectl ddp presets' lists them.",
        f"NAME|{AUTO}|{NONE}",
    ),
    "metricsFrom": Field(
        "metrics_from",
        parse_ingress_peers,
        "Who may read the metrics port, beside the API server.",
        "NAMESPACE|LABEL=VALUE|CIDR|*",
        is_list=True,
    ),
    "egress": Field(
        "egress", v.Choice(Egress, tuple(Egress)), "What the pods may reach.", "|".join(Egress), is_closed=True
    ),
    "dns": Field(
        "dns",
        v.each(DnsServer.parse),
        f"DNS server that pods reach with egress closed ({', '.join(map(str, DEFAULT))}).",
        "NAMESPACE/LABEL=VALUE|CIDR",
        is_list=True,
    ),
}
"""All keys in the order of help, ``render --explain`` and JSON."""

PROGRAM_KEYS: Final = ("script", "module", "command")
PRESET: Final = "preset"
"""Key that names a preset with default values; not part of the job."""
DERIVED: Final = frozenset({"args", "script"})
"""Keys that the command line sets by positional words instead of flags."""
SINGULAR: Final[Mapping[str, str]] = {
    "tolerations": "toleration",
    "mounts": "mount",
    "secrets": "secret",
    "networks": "network",
}
"""Singular names of repeatable flags."""


def flag_of(key: str) -> str:
    """Return the flag of a key.

    >>> flag_of("maxRestarts"), flag_of("env.NAME")
    ('--max-restarts', '--env NAME')
    """
    head, _, rest = key.partition(".")
    kebab = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", SINGULAR.get(head, head))
    return f"--{kebab} {rest}".rstrip()
