"""``charts/ddp-job`` by itself: what plain values make, what the schema refuses, and that both Helms take it alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_trainer.common.constants import SECRET_KEY, Annotation
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.spec.serialization import spec_from_dict, spec_to_dict
from kubectl_ddp.version import version
from tests.support.helm import CHARTS, KUBERNETES, Helm, Object
from tests.support.rendered import store_job, templates, without_secret, worker_template

CHART = CHARTS / "ddp-job"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
PLAIN: dict[str, Any] = {"module": "vision.train", "image": "registry.example.com/vision:1"}
ENGINES = {
    "pytorchjob": "kubeflow.org/v1/PyTorchJob",
    "trainjob": "trainer.kubeflow.org/v1alpha1/TrainJob",
    "jobset": "jobset.x-k8s.io/v1alpha2/JobSet",
}
"""Engines in the order of preference, with what a cluster that has them serves."""
ANY_CLUSTER = "v1/Pod"
"""A kind that only a cluster that was asked is known to serve."""
MONITORS = "monitoring.coreos.com/v1/PodMonitor"


def rendered(helm: Helm, serves: tuple[str, ...] = (), **values: Any) -> list[Object]:
    objects = helm.template(CHART, PLAIN | values, release="run", kubernetes=KUBERNETES, serves=serves)
    return [item for each in objects for item in (each["items"] if each["kind"] == "List" else [each])]


def document(objects: list[Object]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job_kinds.root_of(objects)["metadata"]["annotations"][Annotation.SPEC])
    return found


def test_the_schema_knows_the_values_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert {*schema["properties"]} == {*values, "global"}
    for key, value in values.items():
        if inner := schema["properties"][key].get("properties"):
            assert {*value} <= {*inner}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_lint_finds_nothing(each_helm: Helm, scenario: Path) -> None:
    words = ["lint", "--strict", str(CHART), "--values", str(scenario), "--kube-version", KUBERNETES]
    done = each_helm.run(*words)
    if "trainingruntime.yaml" in done.out:  # it is in a List, which has no name, and lint wants one of each object
        assert done.out.count("WARNING") == 1
        done = each_helm.run(*words, "--set", "engine=jobset")
    assert done.code == 0, done.out + done.err
    assert "WARNING" not in done.out


def test_lint_finds_nothing_in_the_defaults(each_helm: Helm) -> None:
    done = each_helm.run("lint", "--strict", str(CHART), "--kube-version", KUBERNETES)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_both_helms_render_the_same(each_helm: Helm, helm: Helm, scenario: Path) -> None:
    values = yaml.safe_load(scenario.read_text(encoding="utf-8"))
    how = {"release": "run", "kubernetes": KUBERNETES}
    assert without_secret(each_helm.template(CHART, values, **how)) == without_secret(
        helm.template(CHART, values, **how)
    )


def test_the_chart_is_of_this_release() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert about["version"] == about["appVersion"] == version()
    assert f"ddp-trainer:{version()}" in about["annotations"]["artifacthub.io/images"]


@pytest.mark.parametrize("engine", [*ENGINES, "job"])
def test_plain_values_make_a_job_that_the_plugin_reads(each_helm: Helm, engine: str) -> None:
    values = {"nnodes": "2:4", "gpus": 8, "cpu": 88, "memory": "900Gi", "env": {"SEED": 1000000}, "args": [12345678]}
    objects = rendered(each_helm, engine=engine, **values)
    spec = spec_from_dict(document(objects))
    assert spec_to_dict(spec) | {"fabric": "none"} == document(objects)
    assert (spec.nproc, str(spec.nnodes), spec.gpus, str(spec.engine)) == (8, "2:4", 8, engine)
    [container] = worker_template(objects)["spec"]["containers"]
    assert container["args"][-3:] == ["-m", "vision.train", "12345678"]
    assert {"--nnodes=2:4", "--nproc-per-node=8"} <= {*container["args"]}
    assert {"name": "SEED", "value": "1000000"} in container["env"]
    resources = {"cpu": "88", "memory": "900Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": resources, "limits": resources}


def test_a_script_and_a_command_run_as_plain_values(each_helm: Helm) -> None:
    nothing: dict[str, Any] = {"module": ""}
    objects = rendered(each_helm, **nothing, script="src/train.py", scriptText="print()\n", args=["--epochs", "3"])
    [code] = [item for item in objects if item["kind"] == "ConfigMap"]
    assert code["data"] == {"train.py": "print()\n"}
    assert worker_template(objects)["spec"]["containers"][0]["args"][-3:] == [
        "/var/run/ddp-code/train.py",
        "--epochs",
        "3",
    ]
    objects = rendered(each_helm, **nothing, command=["python", "train.py"])
    assert worker_template(objects)["spec"]["containers"][0]["args"][-3:] == ["--no-python", "python", "train.py"]


@pytest.mark.parametrize("number", range(len(ENGINES) + 1))
def test_auto_is_the_first_engine_that_the_cluster_serves(helm: Helm, number: int) -> None:
    engine = [*ENGINES, "job"][number]
    serves = (ANY_CLUSTER, *[*ENGINES.values()][number:])
    objects = rendered(helm, serves)
    assert job_kinds.root_of(objects)["kind"].lower() == document(objects)["engine"] == engine


def test_auto_is_a_pytorchjob_if_no_cluster_is_asked(helm: Helm) -> None:
    objects = rendered(helm)
    assert (job_kinds.root_of(objects)["kind"], document(objects)["engine"]) == ("PyTorchJob", "auto")


@pytest.mark.parametrize(
    ("wanted", "serves", "has_one"),
    [
        ("auto", (), True),
        ("auto", (ANY_CLUSTER,), False),
        ("auto", (ANY_CLUSTER, MONITORS), True),
        ("always", (ANY_CLUSTER,), True),
        ("never", (ANY_CLUSTER, MONITORS), False),
    ],
)
def test_a_pod_monitor_is_made_where_one_is_read(
    helm: Helm, wanted: str, serves: tuple[str, ...], *, has_one: bool
) -> None:
    kinds = [item["kind"] for item in rendered(helm, serves, podMonitor=wanted)]
    assert ("PodMonitor" in kinds) is has_one


def test_values_that_no_job_file_has_take_effect(helm: Helm) -> None:
    objects = rendered(helm, engine="job", serviceAccountName="trainer", runSecret="mine", runId="My_Run.1")
    assert [item for item in objects if item["kind"] == "Secret"] == []
    for template in templates(objects):
        assert template["spec"]["serviceAccountName"] == "trainer"
        assert template["spec"]["automountServiceAccountToken"] is False
        [volume] = [each for each in template["spec"]["volumes"] if each["name"] == SECRET_KEY]
        assert volume["secret"]["secretName"] == "mine"
        assert template["metadata"]["labels"]["ddp.dev/run-id"] == "My_Run.1"
    assert store_job(objects)["metadata"]["name"] == "run-store"
    assert "NetworkPolicy" in [item["kind"] for item in objects]
    without = rendered(helm, networkPolicy={"enabled": False})
    assert "NetworkPolicy" not in [item["kind"] for item in without]


def notes(helm: Helm, **values: Any) -> str:
    """What is printed at an installation."""
    if helm.major < 4:
        pytest.skip("Helm 3 makes notes with a cluster only; the tests on a cluster look at them.")
    return helm.notes(CHART, PLAIN | values, release="run", namespace="team-a")


def test_the_notes_name_the_next_command(helm: Helm) -> None:
    said = notes(helm, nnodes="2:4", engine="job", kueue={"queue": "team"})
    assert "The run run is a Job of 2:4 nodes with 1 process each" in said
    assert "kubectl ddp status run -n team-a" in said
    assert "helm uninstall run -n team-a" in said
    assert "It waits in the queue team until Kueue admits it: kubectl ddp why run -n team-a" in said
    assert "Without checkpointClaim" in said
    assert "networkPolicy.apiServers is empty" in said
    safe = notes(helm, checkpointClaim="vision", networkPolicy={"apiServers": ["10.0.0.1/32"]})
    assert "Without checkpointClaim" not in safe
    assert "apiServers" not in safe


def test_a_value_of_the_command_line_means_what_it_does_in_a_file(each_helm: Helm) -> None:
    said = {"module": "vision.train", "gpus": 8, "memory": "32Gi", "env": {"SEED": 1000000}, "args": [12345678]}
    words = ["module=vision.train", "gpus=8", "memory=32Gi", "env.SEED=1000000", "args={12345678}"]
    how: dict[str, Any] = {"release": "run", "kubernetes": KUBERNETES}
    set_by_words = each_helm.template(CHART, words=[each for word in words for each in ("--set", word)], **how)
    in_file = without_secret(each_helm.template(CHART, said, **how))
    job_kinds.root_of(in_file)["metadata"]["annotations"].pop("ddp.dev/rendered")
    job_kinds.root_of(set_by_words)["metadata"]["annotations"].pop("ddp.dev/rendered")
    assert without_secret(set_by_words) == in_file


def test_letters_that_yaml_refuses_come_through(helm: Helm) -> None:
    words = ["\x7f", "\x85", "\x9f", "\ufeff", "\u2028", "\x00\x1f"[1:]]
    [container] = worker_template(rendered(helm, args=words, engine="job"))["spec"]["containers"]
    assert container["args"][-len(words) :] == words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nodes": 2}, "nodes"),
        ({"networkPolicy": {"ingress": []}}, "ingress"),
        ({"kueue": {"name": "q"}}, "name"),
        ({"gpus": "8"}, "gpus"),
        ({"gpus": 65}, "64"),
        ({"nproc": 0}, "1"),
        ({"nnodes": 0}, "1"),
        ({"nnodes": "many"}, "nnodes"),
        ({"memory": "16"}, "memory"),
        ({"memory": 16}, "string"),
        ({"cpu": "many"}, "cpu"),
        ({"engine": "slurm"}, "pytorchjob"),
        ({"networkPolicy": {"egress": "shut"}}, "closed"),
        ({"networkPolicy": {"apiServers": ["10.0.0.1"]}}, "apiServers"),
        ({"env": {"A": 1.5}}, "string"),
        ({"env": ["A=1"]}, "object"),
        ({"args": [True]}, "string"),
        ({"secretEnv": {"TOKEN": "hub:token"}}, "object"),
        ({"podMonitor": True}, "never"),
        ({"maxRestarts": -1}, "0"),
        ({"name": "Big_Run"}, "name"),
        ({"runId": "a b"}, "runId"),
        ({"script": "train.py", "module": ""}, "scriptText"),
        ({"code": "src"}, "codeArchive"),
        ({"scriptText": "print()"}, "scriptText"),
        ({"command": ["python"]}, "command"),
    ],
)
def test_what_is_no_value_is_refused_by_the_schema(each_helm: Helm, values: dict[str, Any], words: str) -> None:
    said = each_helm.error_response(CHART, PLAIN | values, release="run", kubernetes=KUBERNETES)
    assert "don't meet the specifications of the schema" in said
    assert words in said


def test_a_run_of_nothing_is_refused(each_helm: Helm) -> None:
    said = each_helm.error_response(CHART, {}, release="run", kubernetes=KUBERNETES)
    assert "Nothing says what to run: set script, module or command." in said
