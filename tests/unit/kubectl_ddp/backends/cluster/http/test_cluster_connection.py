import json
from pathlib import Path

import pytest

from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster.http.connection import connect, connection_to
from kubectl_ddp.errors import Unreachable, UsageError
from tests.support.api_server import kubeconfig

SERVER = "https://cluster.example.com:6443"


def test_the_flag_for_the_namespace_comes_before_the_contexts_and_that_before_default(tmp_path: Path) -> None:
    with_namespace = str(kubeconfig(tmp_path, SERVER, namespace="team"))
    assert connect(kubeconfig=with_namespace, namespace="mine").namespace == "mine"
    assert connect(kubeconfig=with_namespace).namespace == "team"
    assert connect(kubeconfig=str(kubeconfig(tmp_path, SERVER, namespace=None))).namespace == "default"


def test_a_connection_is_called_by_its_context_and_knows_the_servers_address(tmp_path: Path) -> None:
    connection = connect(kubeconfig=str(kubeconfig(tmp_path, f"{SERVER}/", name="prod")))
    assert (connection.where, connection.server) == ("prod", SERVER)


@pytest.mark.parametrize(("user", "header"), [
    ({"token": "abc"}, "Bearer abc"),
    ({"username": "eve", "password": "pass"}, "Basic ZXZlOnBhc3M="),
    ({"exec": None}, None),
], ids=["token", "password", "program"])  # fmt: skip
def test_credentials_become_a_header(tmp_path: Path, user: dict[str, object], header: str | None) -> None:
    if "exec" in user:
        answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
        call = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer]}
        user, header = {"exec": call | {"interactiveMode": "Never"}}, "Bearer made"
    connection = connect(kubeconfig=str(kubeconfig(tmp_path, SERVER, user=user)))
    assert dict(connection.login.session().headers) == {"authorization": header}


def test_credentials_that_are_files_need_no_place_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(kubeconfig(tmp_path, SERVER, user={"token": "abc"}))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert dict(connect(kubeconfig=path).login.session().headers) == {"authorization": "Bearer abc"}


def test_the_environment_names_several_files_and_those_that_are_missing_are_passed_over(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, SERVER)
    environ = {"KUBECONFIG": f"{tmp_path}/none:{path}", "HOME": str(tmp_path)}
    assert connect(environ=environ).server == SERVER


def test_without_any_kubeconfig_there_is_no_cluster_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no kubeconfig.*--local"):
        connect(environ={"HOME": str(tmp_path)})


def test_a_kubeconfig_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"/none' does not exist"):
        connect(kubeconfig=f"{tmp_path}/none")


def test_a_cluster_and_a_user_may_be_others_than_the_contexts_own(tmp_path: Path) -> None:
    file = tmp_path / "config"
    servers = {"east": "https://east.example.com", "west": "https://west.example.com"}
    document = {
        "contexts": [{"name": "lab", "context": {"cluster": "east", "user": "eve", "namespace": "team"}}],
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
        "users": [{"name": name, "user": {"token": name}} for name in ("eve", "ada")],
    }
    file.write_text(json.dumps({**document, "current-context": "lab"}))
    found = connection_to(Access(kubeconfig=str(file), cluster="west", user="ada"))
    assert (found.where, found.server, found.namespace) == ("lab", servers["west"], "team")
    assert found.login.session().headers["authorization"] == "Bearer ada"
    with pytest.raises(UsageError, match=r"no cluster 'wset'\. Did you mean 'west'\?"):
        connection_to(Access(kubeconfig=str(file), cluster="wset"))
    with pytest.raises(UsageError, match=r"no user 'bob'\. There are eve, ada\."):
        connection_to(Access(kubeconfig=str(file), user="bob"))
    file.write_text(json.dumps(document))
    found = connection_to(Access(kubeconfig=str(file), cluster="west", user="ada"))
    assert (found.where, found.server, found.namespace) == ("west", servers["west"], "default"), "without a context"


def test_an_unknown_context_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path, SERVER, name="production"))
    with pytest.raises(UsageError, match=r"no context 'prodution'. Did you mean 'production'\?"):
        connect(kubeconfig=path, context="prodution")
    with pytest.raises(UsageError, match=r"There are production\."):
        connect(kubeconfig=path, context="xyz")


@pytest.mark.parametrize("text", ["", "{", "[]", "apiVersion: v1\nkind: Config\n", "a: b: c"])
def test_a_kubeconfig_that_is_none_is_said_to_be_so_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"cannot be used") as caught:
        connect(kubeconfig=str(path))
    assert "\n" not in str(caught.value)
