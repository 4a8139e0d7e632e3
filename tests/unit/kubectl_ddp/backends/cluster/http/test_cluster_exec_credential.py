"""Programs that print credentials: when they start, with what, and what their failures become."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import RETRY_SECONDS, Login, connect
from kubectl_ddp.backends.cluster.http.kubeconfig import V1, Context, run_program
from kubectl_ddp.errors import DdpError, Forbidden, UsageError
from kubectl_ddp.kube.objects import timestamp
from tests.support.api_server import PODS, Answer, ApiServer, kubeconfig, status
from tests.support.certificates import NEW_KEY, needs_openssl
from tests.support.clocks import Clock

SERVER = "https://cluster.example.com"


class Program:
    """A credential program that prints what a test writes, and records its starts and ``KUBERNETES_EXEC_INFO``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "login"
        self.path.write_text(
            f'#!/bin/sh\ncd {folder}\necho start >> starts\nprintf %s "$KUBERNETES_EXEC_INFO" > info\ncat credential\n'
        )
        self.path.chmod(0o755)

    def prints(self, **fields: Any) -> None:
        document = {"apiVersion": V1, "kind": "ExecCredential", "status": fields}
        (self._folder / "credential").write_text(json.dumps(document))

    def config(self, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": V1, "command": str(self.path), "interactiveMode": "Never", **fields}

    @property
    def starts(self) -> int:
        return (self._folder / "starts").read_text().count("start")

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "info").read_text())["spec"]
        return found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def api_of(server: ApiServer, folder: Path, config: dict[str, Any]) -> Api:
    return Api(connect(kubeconfig=str(kubeconfig(folder, server.url, user={"exec": config}))))


def login_of(program: Program, clock: Clock, server: str = "https://cluster.example.com") -> Login:
    context = Context(name="test", namespace="", cluster={"server": server}, user={"exec": program.config()})
    return Login(context, clock=clock)


def test_a_program_starts_once_for_all_threads_and_again_when_its_token_has_expired(program: Program) -> None:
    clock = Clock(1_000_000.0)
    program.prints(token="first", expirationTimestamp=timestamp(clock.now + 240))
    login = login_of(program, clock)

    def tokens() -> set[str]:
        with ThreadPoolExecutor(16) as threads:
            return {session.headers["authorization"] for session in threads.map(lambda _: login.session(), range(64))}

    assert (tokens(), program.starts) == ({"Bearer first"}, 1)
    clock.now += 239
    assert (tokens(), program.starts) == ({"Bearer first"}, 1)
    program.prints(token="second", expirationTimestamp=timestamp(clock.now + 240))
    clock.now += 1
    assert (tokens(), program.starts) == ({"Bearer second"}, 2)


def test_a_token_that_is_refused_is_replaced_unless_new(server: ApiServer, tmp_path: Path, program: Program) -> None:
    program.prints(token="t")
    clock = Clock()
    connection = connect(kubeconfig=str(kubeconfig(tmp_path, server.url)))
    api = Api(replace(connection, login=login_of(program, clock, server.url)))
    refusal = Answer(401, status(401, "Unauthorized", "Unauthorized"))
    server.next(f"GET {PODS}", refusal)
    with pytest.raises(Forbidden, match="does not accept the credentials"):
        api.items(PODS)
    assert program.starts == 1
    clock.now += RETRY_SECONDS
    server.next(f"GET {PODS}", refusal)
    assert api.items(PODS)[0] == []
    assert program.starts == 2


def test_the_requests_of_a_command_share_a_failure(program: Program) -> None:
    clock = Clock()
    program.prints()
    login = login_of(program, clock)
    for _ in range(3):
        with pytest.raises(Forbidden, match="neither a token nor"):
            login.session()
    assert program.starts == 1
    program.prints(token="t")
    clock.now += RETRY_SECONDS
    assert login.session().headers == {"authorization": "Bearer t"}


OF_V9 = '{"kind":"ExecCredential","apiVersion":"v9","status":{"token":"t"}}'
FAILURES: dict[str, tuple[str, dict[str, Any], type[DdpError], str]] = {
    "missing": (
        "",
        {"command": "no-such", "installHint": "Get it."},
        UsageError,
        "'no-such', .* is not installed[.] Get it",
    ),
    "missing without a hint": ("", {"command": "no-such-plugin"}, UsageError, r"is not installed\. Install the cred"),
    "no program": ("", {"command": "/"}, UsageError, r"cannot be started: Permission denied"),
    "fails": ("echo 'token expired:\n log in.' >&2; exit 3", {}, Forbidden, "exit code 3: token expired: log in."),
    "no JSON": ("echo hello", {}, Forbidden, r"did not print an ExecCredential of client\.authentication.*/v1: "),
    "JSON of another kind": ("echo '[]'", {}, Forbidden, r"did not print an ExecCredential"),
    "another version": (f"echo '{OF_V9}'", {}, Forbidden, r"it has the version 'v9'"),
    "an old version": ("", {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, UsageError, "v1alpha1'.*v1beta1"),
    "no mode": ("", {"interactiveMode": None}, UsageError, r"interactiveMode of the program .* is missing\. Set it"),
    "wants a terminal": ("", {"interactiveMode": "Always"}, UsageError, r"wants a terminal as standard input"),
    "no command": ("", {"command": None}, UsageError, r"'exec' of the kubeconfig's user cannot be used"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_program_without_credentials_is_told_of_in_a_sentence_and_nothing_is_asked(
    server: ApiServer, tmp_path: Path, program: Program, name: str
) -> None:
    script, fields, error, text = FAILURES[name]
    program.path.write_text(f"#!/bin/sh\n{script}\n")
    config = {key: value for key, value in program.config(**fields).items() if value is not None}
    with pytest.raises(error, match=text) as caught:
        api_of(server, tmp_path, config).get(f"{PODS}/p")
    assert "\n" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize(("fields", "text"), [
    ({}, "neither a token nor a client certificate"),
    ({"clientCertificateData": "c"}, "only one of"),
    ({"token": "t", "expirationTimestamp": "soon"}, "'soon' is not a time"),
])  # fmt: skip
def test_an_incomplete_credential_is_refused(program: Program, fields: dict[str, str], text: str) -> None:
    program.prints(**fields)
    with pytest.raises(Forbidden, match=text):
        run_program(program.config(), {"server": SERVER})


def test_stderr_of_a_program_is_passed_on(program: Program, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program.prints(token="t")
    program.path.write_text(f"#!/bin/sh\necho 'token renewed' >&2\ncat {tmp_path}/credential\n")
    assert run_program(program.config(), {"server": SERVER}).user == {"token": "t"}
    assert capfd.readouterr().err == "token renewed\n"


def test_a_program_that_wants_it_learns_of_the_cluster_and_has_its_variables(program: Program, tmp_path: Path) -> None:
    program.prints(token="t")
    (tmp_path / "ca.crt").write_text("PEM")
    config = {"audience": "x"}
    shown = {"server": SERVER, "tls-server-name": "kubernetes"}
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": config}]
    cluster = shown | {"certificate-authority": str(tmp_path / "ca.crt"), "extensions": extensions}
    run_program(program.config(), cluster)
    assert program.told == {"interactive": False}
    run_program(program.config(provideClusterInfo=True), cluster)
    assert program.told["cluster"] == shown | {"certificate-authority-data": "UEVN", "config": config}
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(UsageError, match=r"certificate-authority '.*ca\.crt' cannot be read: No such file"):
        run_program(program.config(provideClusterInfo=True), cluster)
    program.path.write_text(f'#!/bin/sh\nprintf "$1 $REGION" > {tmp_path}/seen\ncat {tmp_path}/credential\n')
    run_program(program.config(args=["get-token"], env=[{"name": "REGION", "value": "eu"}]), cluster)
    assert (tmp_path / "seen").read_text() == "get-token eu"


@pytest.mark.parametrize(("mode", "interactive"), [("Never", False), ("IfAvailable", True), ("Always", True)])
def test_a_program_gets_the_terminal_if_its_mode_allows(
    program: Program, monkeypatch: pytest.MonkeyPatch, mode: str, interactive: bool
) -> None:
    program.prints(token="t")
    leader, follower = pty.openpty()
    with os.fdopen(leader), os.fdopen(follower) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        run_program(program.config(interactiveMode=mode), {"server": SERVER})
    assert program.told == {"interactive": interactive}


def test_a_relative_program_is_beside_the_kubeconfig(server: ApiServer, tmp_path: Path, program: Program) -> None:
    program.prints(token="t")
    api_of(server, tmp_path, program.config(command="./login")).items(PODS)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer t"]


@needs_openssl
def test_connections_are_new_for_a_new_certificate_and_kept_for_a_new_token(program: Program, tmp_path: Path) -> None:
    def certificate() -> dict[str, str]:
        files = ["-keyout", tmp_path / "key", "-out", tmp_path / "crt"]
        subprocess.run([*NEW_KEY, "-subj", "/CN=ada", *files], check=True, capture_output=True)
        fields = {"clientCertificateData": "crt", "clientKeyData": "key"}
        return {field: (tmp_path / name).read_text() for field, name in fields.items()}

    clock, first = Clock(), certificate()
    login = login_of(program, clock)
    pools = []
    for fields in ({"token": "a", **first}, {"token": "b", **first}, certificate()):
        clock.now += 100
        program.prints(expirationTimestamp=timestamp(clock.now + 10), **fields)
        session = login.session()
        assert session.headers.get("authorization", "") == (f"Bearer {fields['token']}" if "token" in fields else "")
        pools.append(session.pool)
    assert pools[0] is pools[1]
    assert pools[1] is not pools[2]
