import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import urllib3

from kubectl_ddp.backends.cluster.http.connection import FRESH_SECONDS, RETRY_SECONDS, Login, connect, environment_proxy
from kubectl_ddp.backends.cluster.http.kubeconfig import Context, read_context
from kubectl_ddp.errors import Forbidden, UsageError
from tests.support.api_server import kubeconfig

SERVER = "https://cluster.example.com:6443"


def login(user: dict[str, Any], proxy: str = "", **fields: Any) -> Login:
    return Login(Context(name="test", namespace="", cluster={"server": SERVER, **fields}, user=user), proxy=proxy)


def config(path: Path, **parts: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **parts}))
    return path


def cluster(name: str, **fields: str) -> dict[str, Any]:
    return {"name": name, "cluster": {"server": SERVER, **fields}}


def test_of_several_files_the_first_that_names_a_thing_counts(tmp_path: Path) -> None:
    first = config(
        tmp_path / "a" / "config",
        contexts=[{"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        clusters=[cluster("c", **{"certificate-authority": "ca.crt"})],
    )
    second = config(
        tmp_path / "b" / "config",
        **{"current-context": "prod"},
        contexts=[{"name": "prod", "context": {"cluster": "other"}}],
        clusters=[cluster("c", server="https://other.example.com")],
        users=[{"name": "u", "user": {"tokenFile": "token"}}],
    )
    found = read_context(f"{first}{os.pathsep}{second}")
    assert (found.name, found.namespace, found.cluster["server"]) == ("prod", "team", SERVER)
    assert found.cluster["certificate-authority"] == str(tmp_path / "a" / "ca.crt"), "beside the file that names it"
    assert found.user["tokenFile"] == str(tmp_path / "b" / "token")


@pytest.mark.parametrize(("parts", "text"), [
    ({}, "it has no current-context"),
    ({"current-context": "gone"}, r"names 'gone' as its current context, and has no such context\. It has none"),
    ({"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "c"}}]}, "of 'a' has no server"),
])  # fmt: skip
def test_a_kubeconfig_without_a_server_is_told_what_it_lacks(tmp_path: Path, parts: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_context(str(config(tmp_path / "config", **parts)))


def test_a_token_in_a_file_is_read_again_when_it_may_have_been_renewed_or_was_refused(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    context = Context(name="test", namespace="", cluster={"server": SERVER}, user={"tokenFile": str(file)})
    login = Login(context, clock=lambda: now[0])
    with pytest.raises(Forbidden, match=r"token' cannot be read"):
        login.session()
    now[0] += RETRY_SECONDS
    file.write_text("one\n")
    assert login.session().headers["authorization"] == "Bearer one"
    file.write_text("two")
    assert login.session().headers["authorization"] == "Bearer one"
    now[0] += FRESH_SECONDS + 1
    refused = login.session()
    assert refused.headers["authorization"] == "Bearer two"
    file.write_text("three")
    now[0] += RETRY_SECONDS
    assert login.discard(refused)
    assert login.session().headers["authorization"] == "Bearer three"


def test_a_user_who_acts_as_another_says_so_in_every_request_or_is_refused(tmp_path: Path) -> None:
    extra = {"example.com/scopes": ["view", "edit"]}
    user = {"token": "t", "as": "eve", "as-uid": "u1", "as-groups": ["admins", "ops"], "as-user-extra": extra}
    headers = connect(kubeconfig=str(kubeconfig(tmp_path, SERVER, user=user))).login.session().headers
    scopes = [("Extra-example.com%2Fscopes", scope) for scope in ("view", "edit")]
    acts = [("User", "eve"), ("Uid", "u1"), ("Group", "admins"), ("Group", "ops"), *scopes]
    impersonation = [(f"Impersonate-{key}", value) for key, value in acts]
    assert list(headers.items()) == [("authorization", "Bearer t"), *impersonation]
    path = kubeconfig(tmp_path, SERVER, user={"token": "t", "as-groups": ["admins"]})
    with pytest.raises(UsageError, match=r"Impersonate-Group belong to a user who is acted as, .* with --as\."):
        connect(kubeconfig=str(path))


@pytest.mark.parametrize(("environ", "proxied"), [
    ({}, False),
    ({"HTTPS_PROXY": "http://proxy.example.com:3128"}, True),
    ({"https_proxy": "proxy.example.com:3128"}, True),
    ({"HTTP_PROXY": "http://proxy.example.com:3128"}, False),
    ({"HTTPS_PROXY": "http://proxy.example.com:3128", "NO_PROXY": "localhost, .example.com"}, False),
    ({"HTTPS_PROXY": "http://proxy.example.com:3128", "NO_PROXY": "ample.com,10.0.0.0/8"}, True),
])  # fmt: skip
def test_the_proxy_is_the_one_that_gos_programs_would_take(environ: dict[str, str], proxied: bool) -> None:
    assert environment_proxy(SERVER, environ) == ("http://proxy.example.com:3128" if proxied else "")


def test_a_network_in_no_proxy_means_the_addresses_in_it() -> None:
    environ = {"HTTPS_PROXY": "http://proxy.example.com:3128", "NO_PROXY": "10.0.0.0/8"}
    assert not environment_proxy("https://10.1.2.3:6443", environ)
    assert environment_proxy("https://11.1.2.3:6443", environ)


def test_the_kubeconfigs_proxy_comes_before_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com")
    monkeypatch.setenv("NO_PROXY", "other.example.com")
    file = kubeconfig(tmp_path, SERVER)
    document = json.loads(file.read_text())
    document["clusters"][0]["cluster"]["proxy-url"] = "http://ada:p%40ss@own.example.com"
    file.write_text(json.dumps(document))
    pool = connect(kubeconfig=str(file)).login.session().pool
    assert isinstance(pool, urllib3.ProxyManager)
    assert pool.proxy is not None
    assert pool.proxy.host == "own.example.com"
    assert pool.proxy_headers == {"proxy-authorization": "Basic YWRhOnBAc3M="}


def test_a_proxy_of_an_unknown_kind_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"proxy 'ftp://p\.example\.com' cannot be used"):
        login({}, proxy="ftp://p.example.com").session()


@pytest.mark.parametrize(("fields", "user"), [
    ({"certificate-authority": "/nonexistent/ca.crt"}, {}),
    ({"certificate-authority-data": "bm8gY2VydGlmaWNhdGU="}, {}),
    ({"certificate-authority-data": "bm8"}, {}),
    ({}, {"client-certificate-data": "bm8=", "client-key-data": "bm8="}),
])  # fmt: skip
def test_a_certificate_that_is_none_is_told_of_in_a_sentence(fields: dict[str, str], user: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"kubeconfig .*cannot be used: ") as caught:
        login(user, **fields).session()
    assert "\n" not in str(caught.value)


def test_certificates_are_checked_unless_the_kubeconfig_says_otherwise_and_a_name_may_be_given() -> None:
    checked = login({}, **{"tls-server-name": "kubernetes"}).session().pool.connection_pool_kw
    assert checked["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert checked["ssl_context"].check_hostname
    assert checked["server_hostname"] == "kubernetes"
    blind = login({}, **{"insecure-skip-tls-verify": True}).session().pool.connection_pool_kw
    assert blind["ssl_context"].verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(("server", "proxy", "trusts"), [
    (SERVER, "", True),
    ("http://127.0.0.1:8001", "", False),
    ("http://127.0.0.1:8001", "https://proxy.example.com", True),
])  # fmt: skip
def test_the_authorities_of_the_system_are_trusted_where_a_server_or_a_proxy_has_tls(
    server: str, proxy: str, trusts: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = login({}, proxy=proxy, server=server).session().pool.connection_pool_kw["ssl_context"]
    assert bool(context.get_ca_certs(binary_form=True)) is trusts
