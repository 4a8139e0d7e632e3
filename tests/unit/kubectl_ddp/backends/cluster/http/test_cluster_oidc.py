"""Tokens of OpenID Connect: renewed by the issuer that is trusted, and written to the kubeconfig."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_ddp.backends.cluster.http.connection import Login, connect
from kubectl_ddp.backends.cluster.http.kubeconfig import Context
from kubectl_ddp.errors import Forbidden, UsageError
from tests.support.api_server import kubeconfig
from tests.support.serving import in_thread

SERVER = "https://cluster.example.com"


def token(expires: float) -> str:
    def part(document: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': int(expires)})}.x"


FRESH, EXPIRED = token(time.time() + 3600), token(1)


class Issuer(ThreadingHTTPServer):
    """An issuer whose certificate only its own file trusts."""

    def __init__(self, certificate: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []

    def handle_error(self, *_: object) -> None:
        """Print nothing when a client refuses the certificate."""


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.path)
        renewed = {"id_token": FRESH, "refresh_token": "second", "access_token": "a", "token_type": "Bearer"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token_endpoint": f"{self.server.url}/token", **renewed}).encode())

    do_GET = do_POST = _answer  # noqa: N815 - http.server's names


@pytest.fixture
def issuer(certificate: Path) -> Iterator[Issuer]:
    with in_thread(Issuer(certificate)) as server:
        yield server


def config(issuer: Issuer, **fields: str) -> dict[str, Any]:
    client = {"client-id": "i", "client-secret": "s", "id-token": EXPIRED, "refresh-token": "first"}
    return {"auth-provider": {"name": "oidc", "config": {**client, "idp-issuer-url": issuer.url, **fields}}}


def login(user: dict[str, Any]) -> Login:
    return Login(Context(name="test", namespace="", cluster={"server": SERVER}, user=user))


def test_an_expired_token_is_renewed_in_the_kubeconfig(issuer: Issuer, certificate: Path, tmp_path: Path) -> None:
    user = config(issuer, **{"idp-certificate-authority": str(certificate)})
    file = kubeconfig(tmp_path, SERVER, user=user)
    session = connect(kubeconfig=str(file)).login.session()
    assert session.headers["authorization"] == f"Bearer {FRESH}"
    assert issuer.asked == ["/.well-known/openid-configuration", "/token"]
    user["auth-provider"]["config"] |= {"id-token": FRESH, "refresh-token": "second"}
    assert yaml.safe_load(file.read_text())["users"][0]["user"] == user


def test_nobody_is_asked_whose_certificate_is_not_trusted(issuer: Issuer) -> None:
    with pytest.raises(Forbidden, match=r"auth-provider 'oidc' of context 'test' failed: .*CERTIFICATE_VERIFY_FAILED"):
        login(config(issuer)).session()
    assert issuer.asked == []


def test_a_token_is_sent_and_other_providers_are_refused_as_by_kubectl() -> None:
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": FRESH}}}
    assert login(user).session().headers["authorization"] == f"Bearer {FRESH}"
    with pytest.raises(UsageError, match=r"auth-provider 'gcp' of context 'test' was removed from Kubernetes\."):
        login({"auth-provider": {"name": "gcp"}}).session()
    for config, text in ({}, "id-token"), ({"id-token": "x"}, "none"), ({"id-token": EXPIRED}, "idp-issuer-url"):
        with pytest.raises(Forbidden, match=rf"auth-provider 'oidc' of context 'test' failed: .*{text}"):
            login({"auth-provider": {"name": "oidc", "config": config}}).session()
