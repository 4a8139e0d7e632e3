"""Jobs to test with: one that is complete and plain, and any that is valid."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.engines import Engine
from kubectl_ddp.render import render
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import RESERVED_PREFIXES, TORCHRUN_NAMES, checked, longest_suffix
from kubectl_ddp.values.network_peers import DnsServer, Reader
from kubectl_ddp.values.parsers import Effect, Egress, EnvSource, SecretKey, Toleration
from kubectl_ddp.values.pod import (
    CodeClaim,
    Mount,
    Placement,
    PullPolicy,
    Rdma,
    RuntimeMount,
    SecretFiles,
    Topology,
    VolumeSource,
)
from kubectl_ddp.values.program import Command, Gang, Module, Program, QueueResize, Script
from kubectl_ddp.values.quantity import Cpu, Memory, NodeRange

ENGINES = tuple(engine for engine in Engine if engine is not Engine.AUTO)
"""Engines that run a job."""
ANY_JOB = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine draws jobs slowly, which says nothing about them."""


def a_job(**changes: Any) -> JobSpec:
    """A plain job, with changes."""
    plain: dict[str, Any] = {
        "name": "digits",
        "program": Module("ddp_trainer"),
        "args": ("train", "--task", "digits"),
        "nnodes": NodeRange(1, 2),
        "nproc": 2,
        "cpu": Cpu(2000),
        "memory": Memory(2 * 2**30),
        "shm": Memory(2**29),
        "image": "ddp-trainer:1",
    }
    return checked(JobSpec(**plain | changes))


def a_local_job(name: str) -> Path:
    """The directory of a job of this machine whose engine has never started."""
    directory = local_jobs_directory() / name
    directory.mkdir(parents=True)
    (directory / "objects.json").write_text(json.dumps(render(a_job(name=name), "run1")))
    return directory


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
"""Any text that a process can be given, colons, quotes, line ends and emoji included."""
LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
VARIABLE = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name not in TORCHRUN_NAMES and not name.startswith((*RESERVED_PREFIXES, "TORCH_DISABLE_"))
)

GPU_FABRICS = ("tcp", "gcp-tcpx", "gcp-tcpxo", "gcp-gib", "gcp-gib-dra", "gb200-mnnvl", "gb200-mnnvl+gcp-gib")
"""Fabrics without RDMA devices of a device plugin."""
DNS_SERVERS = st.builds(
    DnsServer.parse,
    st.builds("{}/{}={}".format, LABEL, LABEL | st.just("dns.operator.example.com/daemonset-dns"), LABEL | st.just(""))
    | st.sampled_from(["10.96.0.10", "fd00::/64"]),
)
READERS = st.builds(Reader.parse, LABEL | st.sampled_from(["*", "team=watchers", "10.0.0.0/24", "fd00::/8"]))
SECRET_PATH = st.builds("/s/{}".format, LABEL)
TOPOLOGY = st.builds(Topology, st.sampled_from([Placement.PACK, Placement.SPREAD]), LABEL, st.booleans())


NESTED = st.recursive(
    TEXT | st.booleans() | st.integers(-(10**9), 10**9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(LABEL, inner, max_size=2),
    max_leaves=5,
)
"""Values of a nested object of Kubernetes."""


@st.composite
def mounts(draw: st.DrawFn) -> Mount:
    """Any volume beside the job's own."""
    source = draw(st.sampled_from(VolumeSource))
    name = str(Memory(draw(st.integers(1, 2**40)))) if source is VolumeSource.EMPTY else draw(LABEL)
    path = draw(st.builds("/m/{}".format, LABEL))
    return Mount(source, name, path, read_only=source is not VolumeSource.CONFIG_MAP and draw(st.booleans()))


@st.composite
def extras(draw: st.DrawFn, gpus: int, nproc: int) -> dict[str, Any]:
    """Options that few jobs set."""
    rdma = draw(st.none() | st.builds(Rdma, st.just("rdma/ib"), st.integers(1, 16)))
    fabrics = [*(GPU_FABRICS if gpus else ["gloo-cpu"]), *(["ib"] if gpus and rdma else [])]
    return {
        "mounts": tuple(draw(st.lists(mounts(), max_size=2, unique_by=operator.attrgetter("path")))),
        "secrets": tuple(draw(st.lists(st.builds(SecretFiles, LABEL, SECRET_PATH), max_size=1))),
        "queue": draw(st.none() | LABEL),
        "queue_resize": draw(st.sampled_from([None, QueueResize.START])),
        "scheduler": draw(st.none() | LABEL),
        "topology": tuple(draw(st.lists(TOPOLOGY, max_size=2, unique_by=lambda wish: (wish.placement, wish.key)))),
        "gpu_type": "NVIDIA-H100-80GB-HBM3" if gpus else None,
        "mig": "3g.40gb" if (gpus, nproc) == (1, 1) else None,
        "rdma": rdma,
        "networks": tuple(draw(st.lists(LABEL, max_size=2))),
        "fabric": draw(st.sampled_from(["none", *fabrics])),
        "image_pull_secrets": tuple(draw(st.lists(LABEL, max_size=2))),
        "image_pull_policy": draw(st.none() | st.sampled_from(PullPolicy)),
        "python": draw(st.none() | st.just("/opt/conda/bin/python")),
        "torchrun_shim": draw(st.none() | st.booleans()),
        "runtime_image": draw(st.none() | st.just("ddp-runtime:1")),
        "runtime_mount": draw(st.none() | st.sampled_from(RuntimeMount)),
        "service_account": draw(st.none() | LABEL),
        "labels": draw(st.dictionaries(LABEL, LABEL, max_size=2)),
        "annotations": draw(st.dictionaries(LABEL, TEXT, max_size=2)),
        "run_as_user": draw(st.none() | st.just("none") | st.integers(1, 2**31 - 1)),
        "run_as_group": draw(st.none() | st.just("none") | st.integers(0, 2**31 - 1)),
        "fs_group": draw(st.none() | st.just("none") | st.integers(0, 2**31 - 1)),
        "pod_template": draw(
            st.sampled_from([None, {"spec": {"hostUsers": False, "priority": 5, "hostAliases": None}}])
        ),
        "affinity": draw(st.none() | st.fixed_dictionaries({"podAntiAffinity": st.dictionaries(LABEL, NESTED)})),
    }


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A script, a module or a command."""
    script = st.builds(Script, st.from_regex(r"[-._A-Za-z0-9]{1,20}\.py", fullmatch=True))
    module = st.builds(Module, st.from_regex(r"[a-z_]{1,12}(\.[a-z_]{1,12}){0,2}", fullmatch=True))
    program = TEXT.filter(lambda word: word != "" and not word.startswith("-"))
    words = st.tuples(program) | st.tuples(program, TEXT, TEXT)
    return draw(script | module | st.builds(Command, words))


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Any valid job."""
    least = draw(st.integers(1, 64))
    nodes = NodeRange(least, draw(st.integers(least, 200)))
    spares = draw(st.integers(0, 8))
    gpus = draw(st.integers(0, 8))
    nproc = draw(st.integers(1, gpus)) if gpus else draw(st.integers(1, 16))
    memory = draw(st.integers(2, 2**45))
    variables = draw(st.lists(VARIABLE, max_size=6, unique=True))
    plain, secret = variables[:4], variables[4:]
    name = draw(st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True))
    code = draw(st.none() | LABEL)
    room = 63 - longest_suffix(nodes.maximum + spares)
    seconds = st.integers(1, 10**6)
    return checked(
        JobSpec(
            name=name[:room].rstrip("-"),
            code=code,
            code_claim=None if code else draw(st.none() | st.builds(CodeClaim, LABEL, st.just("") | LABEL)),
            program=draw(programs().filter(lambda program: program != Module("ddp_trainer"))),
            args=tuple(draw(st.lists(TEXT, max_size=5))),
            nnodes=nodes,
            spares=spares,
            nproc=nproc,
            gpus=gpus,
            cpu=Cpu(draw(st.integers(1, 10**6))),
            memory=Memory(memory),
            shm=Memory(draw(st.integers(1, memory - 1))),
            image=draw(st.from_regex(r"[a-z0-9][a-z0-9./-]{0,30}(:[a-z0-9.]{1,10})?", fullmatch=True)),
            env={key: draw(TEXT) for key in plain},
            secret_env={key: SecretKey(draw(LABEL), draw(LABEL)) for key in secret},
            env_from=tuple(
                EnvSource(kind, draw(LABEL))
                for kind in draw(st.lists(st.sampled_from(["secret", "configmap"]), max_size=2))
            ),
            max_restarts=draw(st.integers(0, 1000)),
            grace_seconds=draw(st.integers(5, 3600)),
            checkpoint_claim=draw(st.none() | LABEL),
            compile_cache=draw(st.none() | LABEL | st.just("/data/cache")),
            deadline_seconds=draw(st.none() | seconds),
            ttl_seconds=draw(st.none() | seconds),
            namespace=draw(st.none() | LABEL),
            priority=draw(st.none() | LABEL),
            node_selector=draw(st.dictionaries(LABEL, LABEL, max_size=3)),
            tolerations=tuple(
                Toleration(draw(LABEL), draw(st.just("") | LABEL), draw(st.none() | st.sampled_from(Effect)))
                for _ in range(draw(st.integers(0, 2)))
            ),
            gang=draw(st.sampled_from([Gang.NONE, Gang.AUTO, Gang.VOLCANO, Gang.KAI, Gang.NATIVE])),
            engine=draw(st.sampled_from(Engine)),
            **draw(
                st.builds(dict, egress=st.sampled_from(Egress))
                | st.just({"requirements": ("einops==0.8.1", "a[b]>=2")})
            ),
            dns=tuple(draw(st.lists(DNS_SERVERS, max_size=2))),
            metrics_from=tuple(draw(st.lists(READERS, min_size=1, max_size=2))),
            **(draw(extras(gpus, nproc)) if draw(st.booleans()) else {}),
        )
    )
