"""The findings of ``doctor`` from the facts of a cluster and a machine, and the Role that it prints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kubectl_ddp.cli.run import run
from kubectl_ddp.cli.setup import doctor as client
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.preflight import doctor
from kubectl_ddp.preflight.controllers import CONTROLLER_SELECTOR
from kubectl_ddp.preflight.doctor import ClusterFeatures, check_features
from kubectl_ddp.rbac.rights import EVERYWHERE, Right
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.values.program import Gang
from tests.support.command_line import CommandLine

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "metadata": {"name": "p", "namespace": "ops"}}
SICK = READY | {"status": {}}
CONTROLLER = SICK | {"spec": {"containers": [{"args": ["--settle=10"]}]}}
OPERATOR = "control-plane=kubeflow-training-operator"
FACTS = doctor.ClusterFacts(
    where="lab", server="https://cluster.example.com", namespace="team", has_namespace=True, version="v1.36.3",
    user="ada", engines=["pytorchjob", "job"], gpus=16, nodes=2, operators={OPERATOR: [READY]}, daemons=["calico-node"],
    groups={"kubeflow.org": "v1", "batch": "v1", "monitoring.coreos.com": "v1"},
    labels={"pod-security.kubernetes.io/enforce": "restricted"},
)  # fmt: skip
LAPTOP = client.ClientFacts(
    python="python", kubectl="v1.36.3", torch="2.13.0+cpu", is_torch=True, gpus=0, shm=1 << 30, is_writable=True,
    plugin="/bin/kubectl-ddp", completion="/bin/kubectl_complete-ddp", jobs="/home/ada",
)  # fmt: skip


def severities(found: list[Finding]) -> dict[str, Severity]:
    return {item.subject: item.severity for item in found}


def of_cluster(**changes: Any) -> dict[str, Severity]:
    return severities(list(doctor.run_checks(dataclasses.replace(FACTS, **changes))))


def test_where_all_is_well_nothing_is_marked() -> None:
    assert set(of_cluster().values()) == {Severity.OK}
    assert set(severities(list(client.run_checks(LAPTOP))).values()) == {Severity.OK}


@pytest.mark.parametrize(
    ("changes", "what", "severity"),
    [
        ({"has_namespace": False}, "namespace", Severity.ERROR),
        ({"operators": {OPERATOR: []}}, "engine pytorchjob", Severity.ERROR),
        ({"operators": {OPERATOR: [SICK]}}, "engine pytorchjob", Severity.ERROR),
        ({"operators": {OPERATOR: None}}, "engine pytorchjob", Severity.WARNING),
        ({"operators": {CONTROLLER_SELECTOR: [CONTROLLER]}}, "controller", Severity.WARNING),
        ({"operators": {CONTROLLER_SELECTOR: [CONTROLLER, CONTROLLER | READY]}}, "controller", Severity.OK),
        ({"operators": {CONTROLLER_SELECTOR: []}}, "controller", Severity.OK),
        ({"daemons": []}, "NetworkPolicy", Severity.WARNING),
        ({"daemons": None}, "NetworkPolicy", Severity.WARNING),
        ({"version": "v1.29.0"}, "API server", Severity.WARNING),
        ({"nodes": 0}, "nodes", Severity.ERROR),
        ({"groups": {"batch": "v1"}}, "Prometheus", Severity.WARNING),
    ],
)
def test_what_a_cluster_lacks_is_marked(changes: dict[str, Any], what: str, severity: Severity) -> None:
    assert of_cluster(**changes)[what] == severity


@pytest.mark.parametrize(
    ("changes", "what", "severity"),
    [
        ({"kubectl": ""}, "kubectl", Severity.WARNING),
        ({"completion": ""}, "plugin", Severity.WARNING),
        ({"is_torch": False, "torch": "No module named 'torch'"}, "torch", Severity.WARNING),
        ({"torch": "2.9.1"}, "torch", Severity.WARNING),
        ({"shm": 1 << 20}, "/dev/shm", Severity.WARNING),
        ({"is_writable": False}, "local jobs", Severity.ERROR),
    ],
)
def test_what_a_machine_lacks_is_marked(changes: dict[str, Any], what: str, severity: Severity) -> None:
    assert severities(list(client.run_checks(dataclasses.replace(LAPTOP, **changes))))[what] == severity


def of_features(*, has_kueue: bool = True, **known: Any) -> dict[str, str]:
    """Subject → message of the findings about optional features, where all engines are served."""
    found = check_features(ClusterFeatures(**known), [*ENGINES], has_kueue=has_kueue)
    return {item.subject: item.message for item in found}


def test_the_gang_schedulers_are_listed_and_the_gates_of_one_that_is_off() -> None:
    gangs = {Gang.VOLCANO: "scheduling.volcano.sh/v1beta1"}
    without = of_features(gangs=gangs)["gang schedulers"]
    assert "kueue" in without
    assert "volcano (scheduling.volcano.sh/v1beta1)" in without
    assert "GenericWorkload and GangScheduling" in without
    native = {Gang.NATIVE: "scheduling.k8s.io/v1alpha2"}
    report = of_features(gangs=native, native_engines=["job", "jobset"], has_kueue=False)["gang schedulers"]
    assert "native (scheduling.k8s.io/v1alpha2, engines job, jobset)" in report
    assert "kueue" not in report
    assert "GangScheduling" not in report


@pytest.mark.parametrize(
    ("actions", "on", "off"),
    [
        (["Restart", "RestartAllContainers"], ["ContainerRestartRules", "RestartAllContainersOnContainerExits"], []),
        (["Restart"], ["ContainerRestartRules"], ["RestartAllContainersOnContainerExits"]),
        ([], [], ["ContainerRestartRules", "RestartAllContainersOnContainerExits"]),
    ],
)
def test_the_restarts_in_place_are_listed_with_their_gates(actions: list[str], on: list[str], off: list[str]) -> None:
    has, _, lacks = of_features(restart_actions=actions)["restart in place"].partition("no restart rules")
    assert [gate in has for gate in on] == [True] * len(on)
    assert [gate in lacks for gate in off] == [True] * len(off)


def test_elastic_jobs_are_listed_with_the_gates_that_are_configured() -> None:
    gate = "ElasticJobSet"
    words = {True: f"{gate} is on", False: f"{gate} is off", None: f"{gate} is not configured, so its default applies"}
    reports = {value: of_features(gates={gate: value})["elastic jobs"] for value in words}
    assert all(words[value] in report for value, report in reports.items())
    assert "scale works with pytorchjob and job" in reports[True]
    assert f"whether {gate} is on cannot be read" in of_features(gates={})["elastic jobs"]


def test_an_operator_is_listed_with_the_tag_of_its_image() -> None:
    pod = READY | {"spec": {"containers": [{"image": "registry.example.com:5000/kubeflow/operator:v1.9.4@sha256:0"}]}}
    facts = dataclasses.replace(FACTS, operators={OPERATOR: [pod]})
    found = {finding.subject: finding.message for finding in doctor.run_checks(facts)}
    assert "training operator v1.9.4 runs (1 ready)" in found["engine pytorchjob"]


def of_rights(*missing: Right) -> dict[str, Finding]:
    return {finding.subject: finding for finding in doctor.run_checks(dataclasses.replace(FACTS, missing=missing))}


def test_rights_that_are_missing_are_all_named_at_once_with_what_fails() -> None:
    found = of_rights(Right.of("create", "pytorchjobs.kubeflow.org"), Right.of("create", "services"))["rights: run"]
    assert found.severity == Severity.ERROR
    assert found.message == "missing: create pytorchjobs.kubeflow.org, services"
    assert found.hint == "Submit, preflight, clone cannot work."


def test_where_only_answers_are_shorter_nothing_fails_and_it_is_said_how_much_shorter() -> None:
    found = of_rights(Right.of("list", "pods", EVERYWHERE), Right.of("list", "resourcequotas"))["rights: run"]
    assert found.severity == Severity.WARNING
    assert "ResourceQuotas are left out" in found.hint
    assert of_rights(Right.of("list", "resourcequotas"))["rights: change"].severity == Severity.OK


def test_a_shell_in_a_pod_is_to_be_asked_for_by_itself() -> None:
    lacking = [Right.of("create", "pods/exec"), Right.of("patch", "jobs.batch")]
    assert "opens every pod" not in of_rights(lacking[1])["rights: see"].hint, "the Role has it, for other commands"
    found = of_rights(*lacking)["rights: reach"]
    assert found.severity == Severity.WARNING
    assert found.hint == (
        "Exec, profile cannot work; 'create pods/exec' opens every pod of the namespace, so request it separately."
    )


def test_an_api_server_that_does_not_tell_what_is_granted_is_no_failure() -> None:
    assert of_cluster(missing=None)["rights"] == Severity.WARNING


def test_quiet_leaves_stdout_to_the_role_and_tells_only_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    lacking = dataclasses.replace(FACTS, missing=[Right.of("create", "services")])
    asked = SimpleNamespace(inspect_cluster=lambda: lacking)
    monkeypatch.setattr(client, "inspect_client", lambda _: LAPTOP)
    monkeypatch.setattr(client, "cluster_of", lambda _: asked)
    shown = cli("doctor", "-q", "-n", "team", code=4)
    assert [item["kind"] for item in yaml.safe_load_all(shown.out)] == ["Role", "RoleBinding"]
    assert "missing: create services" in shown.err
    assert LAPTOP.kubectl not in shown.err


def test_where_no_cluster_is_configured_the_checkup_says_that_it_looked_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECTL_DDP_PYTHON", "/bin/false")  # torch is not what this is about, and slow
    run(["doctor"])
    assert "none is configured: there is no kubeconfig" in capsys.readouterr().out
    run(["doctor", "--local"])
    assert "kubeconfig" not in capsys.readouterr().out
