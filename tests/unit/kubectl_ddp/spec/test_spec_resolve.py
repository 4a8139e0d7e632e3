"""Flag over file over preset over default, rules for the rest, and where each value came from."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.fields import PRESETS
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, Resolved, resolve, set_values
from kubectl_ddp.values.program import Command, Module, Script
from kubectl_ddp.values.quantity import Cpu, Memory, NodeRange

HERE = DefaultingContext(image="ddp-trainer:1")


def flags(**values: Any) -> Layer:
    return {key.replace("__", "."): Given(raw, Origin(OriginKind.FLAG, f"--{key}")) for key, raw in values.items()}


def a_file(**values: Any) -> Layer:
    return {
        key.replace("__", "."): Given(raw, Origin(OriginKind.FILE, "job.yaml line 3")) for key, raw in values.items()
    }


def resolved(*layers: Layer, surroundings: DefaultingContext = HERE) -> Resolved:
    return resolve([flags(module="pkg.train"), *layers], surroundings)


def spec(*layers: Layer) -> JobSpec:
    return resolved(*layers).spec


def test_nothing_but_a_program_is_a_whole_job() -> None:
    found = spec()
    assert (found.name, found.nnodes, found.nproc, found.gpus) == ("train", NodeRange(1, 1), 1, 0)
    assert (found.cpu, found.memory, found.shm) == (Cpu(1000), Memory(2 * 2**30), Memory(2**29))
    assert (found.image, found.max_restarts, found.grace_seconds) == ("ddp-trainer:1", 10, 30)


@pytest.mark.parametrize(("layers", "grace", "kind"), [
    ((), 30, OriginKind.PRESET),
    ((flags(preset="none"),), 30, OriginKind.DEFAULT),
    ((flags(gpus="1"),), 120, OriginKind.PRESET),
    ((a_file(grace="45s", gpus="1"),), 45, OriginKind.FILE),
    ((a_file(grace="45s"), flags(grace="1m")), 60, OriginKind.FLAG),
], ids=["preset of cpu", "default", "preset of gpu", "file over preset", "flag over file"])  # fmt: skip
def test_the_stronger_source_wins(layers: tuple[Layer, ...], grace: int, kind: OriginKind) -> None:
    found = resolved(*layers)
    assert found.spec.grace_seconds == grace
    assert found.origins["grace"].kind is kind


def test_maps_of_several_sources_add_up_entry_by_entry() -> None:
    found = resolved(a_file(env__A="1", env__B="1", gpus="1"), flags(env__B="2"))
    assert found.spec.env["A"] == "1"
    assert found.spec.env["B"] == "2"
    assert found.spec.env["NCCL_DEBUG"] == "WARN"
    assert (found.origins["env.A"].kind, found.origins["env.B"].kind) == (OriginKind.FILE, OriginKind.FLAG)


def test_lists_of_a_stronger_source_replace_the_weaker() -> None:
    assert spec(a_file(args=["a", "b"]), flags(args=["c"])).args == ("c",)


def test_a_program_on_the_command_line_replaces_that_of_the_file() -> None:
    found = resolve([a_file(module="pkg.train", args=["a"]), flags(script="other.py")], HERE).spec
    assert (found.program, found.args) == (Script("other.py"), ("a",))


@pytest.mark.parametrize(("keys", "program"), [
    ({"script": "dir/My train.py"}, Script("dir/My train.py")),
    ({"module": "a.b"}, Module("a.b")),
    ({"command": "python 'a b.py'"}, Command(("python", "a b.py"))),
    ({"command": ["sh", "-c", "x y"]}, Command(("sh", "-c", "x y"))),
])  # fmt: skip
def test_each_way_to_say_what_runs(keys: dict[str, Any], program: object) -> None:
    assert resolve([flags(**keys)], HERE).spec.program == program


@pytest.mark.parametrize(("keys", "name"), [
    ({"script": "My_Train.v2.py"}, "my-train-v2"),
    ({"script": "3d.py"}, "job-3d"),
    ({"script": "日本.py"}, "job"),
    ({"script": "x" * 80 + ".py"}, "x" * 40),
    ({"module": "pkg.__main__"}, "pkg"),
    ({"command": "/usr/bin/env python"}, "env"),
])  # fmt: skip
def test_a_name_is_made_of_what_runs(keys: dict[str, Any], name: str) -> None:
    assert resolve([flags(**keys)], HERE).spec.name == name


def test_a_made_up_name_takes_the_ending_and_a_given_one_does_not() -> None:
    with_ending = DefaultingContext(image="a:1", name_suffix="x7k2p")
    assert resolved(surroundings=with_ending).spec.name == "train-x7k2p"
    assert resolved(flags(name="mine"), surroundings=with_ending).spec.name == "mine"


def test_gpus_decide_processes_cores_memory_and_preset() -> None:
    found = spec(flags(gpus="8"))
    assert (found.nproc, found.cpu, found.memory) == (8, Cpu(24000), Memory(96 * 2**30))
    assert found.env["OMP_NUM_THREADS"] == "3"


def test_threads_follow_the_cores_of_each_process() -> None:
    assert spec(flags(nproc="2", cpu="8")).env["OMP_NUM_THREADS"] == "4"
    assert spec(flags(nproc="8", cpu="2")).env["OMP_NUM_THREADS"] == "1"
    assert spec(flags(env__OMP_NUM_THREADS="7")).env["OMP_NUM_THREADS"] == "7"


def test_the_image_of_the_environment_stands_in_for_the_default_only() -> None:
    around = DefaultingContext(image="mine:2", image_origin=Origin(OriginKind.ENVIRONMENT, "$KUBECTL_DDP_IMAGE"))
    assert str(resolved(surroundings=around).origins["image"]) == "environment $KUBECTL_DDP_IMAGE"
    assert resolved(a_file(image="theirs:3"), surroundings=around).spec.image == "theirs:3"


@pytest.mark.parametrize(("keys", "sentence"), [
    ({"spares": "1001"}, "--spares: '1001' is not an integer from 0 to 1000."),
    ({"name": "My_Job"}, "--name: 'My_Job' is not a name for a job. Use lower case letters"),
    ({"module": "train.py x"}, "--module: 'train.py x' is not a Python module."),
    ({"command": "-x y"}, "--command: '-x' is not a program."),
    ({"command": "a 'b"}, "--command: 'a 'b' cannot be split into words: No closing quotation."),
    ({"metricsFrom": ["10.0.0.1/24"]}, "'10.0.0.1/24' is not a valid source of metrics requests. Name a namespace"),
    ({"dns": ["kube-dns"]}, "'kube-dns' names no DNS server. Write NAMESPACE/LABEL=VALUE"),
    ({"mounts": ["nfs=a:/data"]}, "'nfs' is not a kind of volume. Write pvc=NAME:/PATH[:ro], configmap="),
    ({"mounts": ["pvc=a:data"]}, "'data' is not an absolute path. Begin it with '/', as in '/data'."),
    ({"mounts": ["pvc=a:/usr"]}, "A mount at '/usr' would hide the image's own files."),
    ({"mounts": ["pvc=a:/data:rx"]}, "'pvc=a:/data:rx' ends in 'rx'. Write ':ro' to mount it read-only."),
    ({"mounts": ["configmap=a:/data:rw"]}, "requests write access to a ConfigMap."),
    ({"mounts": ["data"]}, "'data' mounts nothing."),
    ({"secrets": ["hub"]}, "'hub' mounts no Secret. Write 'NAME:/PATH'"),
    ({"topology": ["rack"]}, "'rack' is not a placement constraint. Write pack=LABEL or spread=LABEL"),
    ({"rdma": "ib"}, "'ib' names no RDMA resource. Write RESOURCE or RESOURCE=COUNT, as in 'rdma/ib=8'"),
    ({"mig": "half"}, "'half' is not a MIG profile."),
    ({"mig": "1g.10gb", "nproc": "4"}, "and nproc is 4: NCCL before 2.30 does not join slices of one GPU. Omit"),
    ({"runAsUser": "0"}, "from 1 to 2147483647; Pod Security 'restricted' forbids root. Write a number, or 'none'"),
    ({"imagePullPolicy": "always"}, "'always' is not one of IfNotPresent, Always, Never. Did you mean 'Always'?"),
    ({"labels__a b": "c"}, "'a b' is not a valid label."),
    ({"labels__team": "a b"}, "'a b' is not a value of a label."),
    ({"affinity": "{nodeAffinity: 5}"}, "affinity.nodeAffinity has no list of maps requiredDuring"),
    ({"affinity": "{nodeAffinity: }"}, "--affinity: nodeAffinity has no value. Give it one, or leave it out."),
    ({"affinity": "{a: 1, a: 2}"}, "--affinity: it is not valid YAML: 'a' is given twice. Write it as in a pod."),
    ({"podTemplate": "{containers: []}"}, "--podTemplate: 'containers' is not one of metadata, spec."),
    ({"affinity": f"{{podAffinity: {'[' * 99}{']' * 99}}}"}, "is nested too deeply"),
    ({"affinity": "none"}, "--affinity: 'none' is not a map of nodeAffinity, podAffinity, podAntiAffinity."),
    ({"queueResize": "running", "queue": "q", "nnodes": "1:2"}, "'auto', and Kueue resizes only --engine job."),
    ({"queueResize": "running", "queue": "q", "engine": "job", "nnodes": "2"}, "size is fixed by --nnodes 2."),
    ({"queueResize": "running", "queue": "q", "engine": "job", "nnodes": "1:2", "gang": "kueue"}, "whose topology"),
    ({"gang": "volcano", "queue": "q", "queuePriority": "urgent"}, "in no queue of Kueue's. Add --queue NAME"),
    ({"tolerations": ["a:Never"]}, "--tolerations: 'a:Never' is not a taint."),
    ({"env__A": "a\0b"}, "contains a NUL character"),
    ({"args": ["\udcff"]}, "is not UTF-8 text"),
])  # fmt: skip
def test_a_bad_value_is_one_sentence_with_the_value_and_the_way_out(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec(flags(**keys))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_value_of_a_file_names_the_line_and_the_key() -> None:
    with pytest.raises(UsageError, match=r"^job.yaml line 3, nproc: 'two' is not an integer"):
        spec(a_file(nproc="two"))


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(UsageError, match="The job has no program"):
        resolve([], HERE)


@pytest.mark.parametrize(("assignment", "key", "raw"), [
    ("nnodes=2:4", "nnodes", "2:4"),
    ("env.A=b=c", "env.A", "b=c"),
    ("args=[a, b]", "args", ["a", "b"]),
    ("nodeSelector.kubernetes.io/arch=arm64", "nodeSelector.kubernetes.io/arch", "arm64"),
    ("preset=none", "preset", "none"),
])  # fmt: skip
def test_set_takes_any_key(assignment: str, key: str, raw: object) -> None:
    assert {name: given.raw for name, given in set_values([assignment]).items()} == {key: raw}


@pytest.mark.parametrize(("assignment", "sentence"), [
    ("nodes=2", "--set nodes=2: a job has no key 'nodes'. Did you mean 'nnodes'?"),
    ("nnodes", "--set nnodes: a job has no key 'nnodes'."),
    ("env=A", "--set env=A: 'env' takes no such value."),
    ("name.a=b", "--set name.a=b: 'name.a' takes no such value."),
])  # fmt: skip
def test_set_refuses_what_no_job_has(assignment: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        set_values([assignment])


def test_every_setting_of_a_preset_has_a_reason_and_is_valid() -> None:
    for preset in PRESETS.values():
        assert all(setting.reason for setting in preset.settings.values())
        gpus = "1" if preset.name.startswith("gpu") else "0"
        found = resolved(flags(preset=preset.name, gpus=gpus))
        for key, setting in preset.settings.items():
            assert found.origins[key] == Origin(OriginKind.PRESET, preset.name, setting.reason)
