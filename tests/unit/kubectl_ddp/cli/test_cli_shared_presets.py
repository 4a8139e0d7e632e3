"""Presets that a namespace shares: ``--preset`` and ``presets`` read them and report errors."""

from __future__ import annotations

import json

import pytest

from kubectl_ddp.cli.run import run
from tests.support.api_server import Answer, ApiServer, status
from tests.support.command_line import CommandLine

CONFIG_MAP = "/api/v1/namespaces/team/configmaps/ddp-presets"
RENDER = ["render", "--name", "new", "--image", "example.com/train:1", "--command", "true", "--preset"]
A100 = """\
summary: Eight A100 per node.
settings:
  gpus: {value: 8, reason: a node has eight, source: https://example.com/a100}
  tolerations: {value: [gpu=a100], reason: a taint keeps other pods away}
  env.OMP_NUM_THREADS: {value: 4, reason: the node has 32 cores}
  queue: {value: team, reason: the machines are the team's}
"""


@pytest.fixture
def cluster(cluster: ApiServer) -> ApiServer:
    cluster.put(CONFIG_MAP, {"data": {"a100": A100, "broken": "summary: [", "odd": "settings: {gpu: {value: 8}}"}})
    return cluster


def test_a_job_takes_the_values_of_a_shared_preset(cluster: ApiServer, cli: CommandLine) -> None:
    objects = json.loads(cli(*RENDER, "a100", "-o", "json", "--engine", "pytorchjob").out)["items"]
    [job] = [item for item in objects if item["kind"] == "PyTorchJob"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"key": "gpu", "operator": "Equal", "value": "a100"} in pod["tolerations"]
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in pod["containers"][0]["env"]


def test_a_flag_wins_over_it_and_its_reasons_are_told(cluster: ApiServer, cli: CommandLine) -> None:
    shown = cli(*RENDER, "a100", "--gpus", "4", "--explain", "--engine", "pytorchjob").out
    assert "preset a100: the node has 32 cores" in shown
    assert "a node has eight" not in shown


def test_presets_that_we_bring_are_taken_without_asking(cluster: ApiServer) -> None:
    assert run([*RENDER, "gpu-nccl", "--engine", "pytorchjob"]) == 0
    assert cluster.requests == []


def test_they_are_listed_and_a_broken_one_says_so(cluster: ApiServer, cli: CommandLine) -> None:
    rows = {row.split()[0]: row for row in cli("presets").out.splitlines()}
    assert rows["a100"].split(maxsplit=2)[1:] == ["shared", "Eight A100 per node."]
    assert "cannot be read: it is not valid YAML" in rows["broken"]
    assert "no preset sets 'gpu'" in rows["odd"]


def test_one_is_shown_with_its_reasons(cluster: ApiServer, cli: CommandLine) -> None:
    shown = cli("presets", "a100").out
    assert "a100 (shared): Eight A100 per node." in shown
    assert "  gpus: 8\n    a node has eight\n    https://example.com/a100\n" in shown
    document = json.loads(cli("presets", "a100", "-o", "json").out)
    assert document["source"] == "the ConfigMap 'ddp-presets' in namespace 'team'"
    assert document["values"][1]["value"] == ["gpu=a100"]


@pytest.mark.parametrize(("name", "sentence"), [
    ("broken", "The preset 'broken' of the ConfigMap 'ddp-presets' in namespace 'team' cannot be read: it is "),
    ("odd", "cannot be read: no preset sets 'gpu'"),
    ("a10", "--preset: there is no preset 'a10'. Did you mean 'a100'?"),
])  # fmt: skip
def test_what_cannot_be_had_is_one_sentence(cluster: ApiServer, cli: CommandLine, name: str, sentence: str) -> None:
    assert sentence in cli(*RENDER, name, code=2).err


def test_a_refusal_is_told_with_the_name_of_the_preset(cluster: ApiServer, cli: CommandLine) -> None:
    refused = Answer(403, status(403, "Forbidden", "no", name="ddp-presets"))
    cluster.next(f"GET {CONFIG_MAP}", refused, refused)
    assert "there is no preset 'a100'; those of the cluster cannot be read: The API server does not let" in (
        cli(*RENDER, "a100", code=2).err
    )
    shown = cli("presets")
    assert "Presets that the namespace shares are not known: The API server does not let" in shown.err
    assert "gpu-nccl" in shown.out


def test_this_machine_shares_none(cluster: ApiServer, cli: CommandLine) -> None:
    assert "there is no preset 'a100'." in cli(*RENDER, "a100", "--local", code=2).err
    assert "a100" not in cli("presets", "--local").out
    assert cluster.requests == []


def test_the_namespace_of_the_job_is_asked(cluster: ApiServer) -> None:
    assert run([*RENDER, "a100", "-n", "other"]) == 2
    assert cluster.asked("GET")[-1] == "/api/v1/namespaces/other/configmaps/ddp-presets"
