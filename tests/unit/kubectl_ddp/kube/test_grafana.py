"""``dashboard``: where Grafana is, by flag, variable, defaults or the cluster, and what is opened there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddp_trainer.common.metric_names import Dashboard
from kubectl_ddp.backends.base import ExecCommand
from kubectl_ddp.cli.jobs.dashboard import open_port_forward
from kubectl_ddp.cli.run import run
from kubectl_ddp.errors import NotFound, Unreachable, UsageError
from kubectl_ddp.kube.grafana import address, parse_url
from tests.support.api_server import ApiServer, kubeconfig, serving
from tests.support.command_line import CommandLine

KINDS = {"/api/v1": {"Service": "services"}}
BASE = "https://grafana.example.com/team"
SERVICE = {"metadata": {"labels": {"app.kubernetes.io/name": "grafana"}}, "spec": {"ports": [{"port": 80}]}}


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person without defaults, with a kubectl that opens a way, and closes it."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text("#!/bin/sh\necho 'Forwarding from 127.0.0.1:4567 -> 3000'\necho \"$@\" >&2\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECTL_DDP_GRAFANA", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def on(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder, server.url)))


def test_the_flag_wins_over_the_variable_and_the_variable_over_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ApiServer(KINDS)) as server:
        on(server, tmp_path, monkeypatch)
        assert run(["config", "set", "grafana", "https://by-default.example.com"]) == 0
        assert run(["dashboard", "digits"]) == 0
        monkeypatch.setenv("KUBECTL_DDP_GRAFANA", "https://by-variable.example.com/")
        assert run(["dashboard", "pytorchjob/digits", "--ranks", "-n", "other"]) == 0
        assert run(["dashboard", "--grafana", BASE]) == 0
        assert not server.requests
    assert capsys.readouterr().out.splitlines() == [
        "https://by-default.example.com/d/ddp-job?var-namespace=team&var-ddp_job=digits",
        "https://by-variable.example.com/d/ddp-ranks?var-namespace=other&var-ddp_job=digits",
        f"{BASE}/d/ddp-fleet",
    ]


def test_a_default_that_no_job_has_does_not_reach_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    assert run(["config", "set", "grafana", BASE]) == 0
    monkeypatch.chdir(tmp_path)
    words = ["render", "--name", "new", "--image", "example.com/train:1", "--command", "true"]
    assert "grafana" not in cli(*words).out


def test_grafanas_service_is_found_by_its_label_and_the_way_to_it_is_said_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    with serving(ApiServer(KINDS)) as server:
        on(server, tmp_path, monkeypatch)
        assert "no Service with the label app.kubernetes.io/name=grafana" in cli("dashboard", "digits", code=3).err
        server.put("/api/v1/namespaces/watch/services/grafana", SERVICE)
        output = cli("dashboard", "digits", "--print")
        assert output.out == "http://127.0.0.1:3000/d/ddp-job?var-namespace=team&var-ddp_job=digits\n"
        assert "port-forward --namespace=watch service/grafana 3000:80" in output.err
        server.put("/api/v1/namespaces/also/services/grafana", SERVICE)
        assert "several Grafanas: service/grafana in namespace" in cli("dashboard", "digits", code=2).err


def test_a_job_of_this_machine_has_no_cluster_to_look_in(cli: CommandLine) -> None:
    assert "The address of Grafana is not set" in cli("dashboard", "digits", "--local", code=3).err
    assert cli("dashboard", "digits", "--local", "--grafana", BASE).out == f"{BASE}/d/ddp-job?var-ddp_job=digits\n"


@pytest.mark.parametrize(
    "url", ["grafana", "ftp://grafana.example.com", "https://", "https://me:word@grafana.example.com"]
)
def test_what_is_no_address_is_refused_and_passwords_are_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_url(url, "--grafana")
    assert "word" not in str(refused.value).replace("password", "")


def test_names_are_written_so_that_they_stay_one_value() -> None:
    assert address(BASE, Dashboard.JOB, {"ddp_job": "a&b=c"}).endswith("?var-ddp_job=a%26b%3Dc")


def test_a_way_is_open_while_it_is_used_and_one_that_does_not_open_says_why() -> None:
    with open_port_forward(ExecCommand(words=("kubectl", "port-forward"))) as opened:
        assert opened.port == 4567
        opened.wait()
    with (
        pytest.raises(Unreachable, match="no such service"),
        open_port_forward(ExecCommand(words=("sh", "-c", "echo 'error: no such service' >&2; exit 1"))),
    ):
        pass
    with pytest.raises(NotFound), open_port_forward(ExecCommand(words=("/nonexistent/kubectl",))):
        pass
