import contextlib
import logging
import socket
import ssl
import threading
from pathlib import Path

import pytest

from kubectl_ddp.backends.cluster.http.api import PAGE, Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed, PolicyDenied
from kubectl_ddp.backends.cluster.http.connection import Connection, connect
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, Unreachable, UsageError
from tests.support.api_server import JOBS, PODS, Answer, ApiServer, kubeconfig, status
from tests.support.ports import free_port

CAUSES = [{"field": "spec.a", "message": "must be 1"}, {"field": "spec.b", "message": "must be 2"}]
INVALID = status(422, "Invalid", "x", name="p", causes=CAUSES)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def api(connection: Connection, pauses: list[float]) -> Api:
    return Api(connection, sleep=pauses.append)


def test_a_list_is_read_in_pages_and_comes_back_whole_and_in_order(server: ApiServer, api: Api) -> None:
    for index in range(7):
        server.put(f"{PODS}/p{index}", {})
    server.page = 3
    found, version = api.items(PODS)
    assert [pod["metadata"]["name"] for pod in found] == [f"p{index}" for index in range(7)]
    assert int(version) > 100
    assert [request.query["limit"] for request in server.requests] == [str(PAGE)] * 3


def test_a_list_whose_pages_the_server_forgot_is_begun_anew(server: ApiServer, api: Api, pauses: list[float]) -> None:
    server.put(f"{PODS}/p", {})
    server.next(f"GET {PODS}", Answer(410, status(410, "Expired", "continue token too old")))
    assert len(api.items(PODS)[0]) == 1
    assert pauses == [1.0]


def test_later_means_after_so_many_seconds_also_for_a_change(server: ApiServer, api: Api, pauses: list[float]) -> None:
    busy = Answer(429, status(429, "TooManyRequests", "busy"), {"Retry-After": "7"})
    server.next(f"POST {PODS}", busy, busy)
    api.create(PODS, {"metadata": {"name": "p"}})
    assert pauses == [7.0, 7.0]
    assert f"{PODS}/p" in server.objects


def test_nobody_waits_an_hour_because_a_server_says_so(server: ApiServer, api: Api, pauses: list[float]) -> None:
    server.next(f"GET {PODS}", Answer(503, "", {"Retry-After": "3600"}))
    api.items(PODS)
    assert pauses == [30.0]


def test_a_server_that_stays_busy_is_given_up_with_a_sentence(server: ApiServer, api: Api, pauses: list[float]) -> None:
    server.next(f"GET {PODS}", *[Answer(429, status(429, "TooManyRequests", "busy"))] * 9)
    with pytest.raises(Unreachable, match=r"is too busy to list pods"):
        api.items(PODS)
    assert pauses == [1.0] * 5


def test_a_read_survives_a_gateway_and_no_change_is_sent_twice(
    server: ApiServer, api: Api, pauses: list[float]
) -> None:
    server.next(f"GET {PODS}", Answer(502, "<html>"), Answer(504, "<html>"))
    api.items(PODS)
    assert len(pauses) == 2
    server.next(f"POST {PODS}", Answer(502, "<html>bad gateway"))
    with pytest.raises(Unreachable, match=r"failed to create pods in namespace 'team': 502 Bad Gateway\."):
        api.create(PODS, {"metadata": {"name": "p"}})
    assert server.asked("POST") == [PODS]


def test_a_read_is_sent_again_when_the_connection_broke(server: ApiServer, api: Api) -> None:
    server.next(f"GET {PODS}", Answer(200, "{", cut=True))
    assert api.items(PODS)[0] == []


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Answer(400, status(400, "BadRequest", "that makes no sense")), DdpError, "cannot create.*makes no sense"),
        (Answer(401, status(401, "Unauthorized", "Unauthorized")), Forbidden, "credentials of context 'test'.*Log in"),
        (Answer(403, status(403, "Forbidden", "User eve cannot")), Forbidden, "let context 'test' create pods.*: User"),
        (Answer(404, status(404, "NotFound", "no", name="team", kind="namespaces")), NotFound, "'team' does not exist"),
        (Answer(404, "404 page not found"), NotServed, "does not serve pods"),
        (Answer(404, '{"kind":"Status","apiV'), Unreachable, "failed to create pods"),
        (Answer(409, status(409, "AlreadyExists", "pods p exists", name="p")), AlreadyExists, "exists already"),
        (Answer(409, status(409, "Conflict", "modified", name="p")), DdpError, "by someone else.*Try again"),
        (Answer(413, status(413, "RequestEntityTooLarge", "limit is 3 MB")), UsageError, "too large.*limit is 3 MB"),
        (Answer(422, INVALID), UsageError, r"pods in namespace 'team': spec\.a: must be 1; spec\.b: must be 2\."),
        (Answer(500, status(500, "InternalError", "webhook failed")), Unreachable, "webhook failed.*administrator"),
        (Answer(418, "short and stout"), DdpError, r"418 I'm a Teapot \(short and stout\)"),
        (Answer(302, "", {"Location": "https://login.example.com"}), DdpError, "302 Found"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else None,
)  # fmt: skip
def test_a_refusal_becomes_one_sentence_with_the_servers_words(
    server: ApiServer, api: Api, answer: Answer, error: type[DdpError], text: str
) -> None:
    server.next(f"POST {PODS}", answer)
    with pytest.raises(error, match=text) as caught:
        api.create(PODS, {"metadata": {"name": "p"}})
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_told_from_a_kind_that_is_not_served(server: ApiServer, api: Api) -> None:
    with pytest.raises(NotFound, match=r"no pytorchjobs\.kubeflow\.org 'digits' in namespace 'team' of context 'test'"):
        api.get(f"{JOBS}/digits")
    with pytest.raises(NotServed, match=r"does not serve trainjobs\.trainer\.kubeflow\.org"):
        api.get("/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits")
    del server


def test_every_change_says_who_makes_it_and_who_asks(server: ApiServer, api: Api) -> None:
    api.create(PODS, {"metadata": {"name": "p"}})
    api.apply(f"{PODS}/p", {"metadata": {"name": "p"}})
    api.merge(f"{PODS}/p", {"spec": {}})
    assert {request.query["fieldManager"] for request in server.requests} == {"kubectl-ddp"}
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer letmein"}
    assert all(request.headers["User-Agent"].startswith("kubectl-ddp/") for request in server.requests)
    assert [request.headers["Content-Type"] for request in server.requests] == [
        "application/json", "application/apply-patch+yaml", "application/merge-patch+json",
    ]  # fmt: skip


@pytest.mark.parametrize(("address", "text"), [
    ("http://127.0.0.1:{port}", r"connection refused\. Check that the cluster is up"),
    ("http://api.cluster.invalid", r"the name 'api\.cluster\.invalid' is not known"),
    ("https://{server}", r"the TLS handshake fails \(.*\)\. Check address and port"),
])  # fmt: skip
def test_a_server_that_cannot_be_reached_is_named_with_its_address_and_the_way_out(
    server: ApiServer, tmp_path: Path, address: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = address.format(port=free_port(), server=server.url.removeprefix("http://"))
    api = Api(connect(kubeconfig=str(kubeconfig(tmp_path, url))))
    with caplog.at_level(logging.DEBUG), pytest.raises(Unreachable, match=text) as caught:
        api.get(PODS)
    assert url in str(caught.value)
    assert "Retrying" not in caplog.text


@pytest.mark.parametrize("peer", ["closes", "signed by nobody"])
def test_a_peer_that_closes_has_no_untrusted_certificate(tmp_path: Path, certificate: Path, peer: str) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            if peer == "closes":
                connection.recv(1 << 14)
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            context.wrap_socket(connection, server_side=True).close()

    def serve() -> None:
        with contextlib.suppress(OSError):  # the test closes the listener
            while True:
                answer()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        api = Api(connect(kubeconfig=str(kubeconfig(tmp_path, f"https://127.0.0.1:{listener.getsockname()[1]}"))))
        with pytest.raises(Unreachable) as caught:
            api.get(PODS)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert ("not trusted" in str(caught.value)) is (peer != "closes")
    assert ("handshake fails" in str(caught.value)) is (peer == "closes")


DENIED = (
    "pods \"digits\" is forbidden: ValidatingAdmissionPolicy 'ddp-host-path' with binding 'ddp-host-path' "
    "denied request: spec.volumes[data].hostPath: a job may not; use a claim."
)


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (422, "Invalid")])
def test_a_policy_that_refuses_is_named_with_its_sentence(server: ApiServer, api: Api, code: int, reason: str) -> None:
    server.next(f"POST {PODS}", Answer(code, status(code, reason, DENIED)))
    with pytest.raises(PolicyDenied) as caught:
        api.create(PODS, {"metadata": {"name": "digits"}})
    assert str(caught.value) == (
        "The policy 'ddp-host-path' refuses pods 'digits' in namespace 'team': "
        "spec.volumes[data].hostPath: a job may not; use a claim."
    )
    assert caught.value.exit_code == 5


def test_warnings_of_the_api_server_are_told_once_to_who_wants_to_hear_them(server: ApiServer, api: Api) -> None:
    warned = Answer(201, {}, {"Warning": '299 - "say \\"please\\"", 299 api "another, too"'})
    server.next(f"POST {PODS}", warned, warned)
    messages: list[str] = []
    telling = api.with_warning_handler(messages.append)
    for name in ("a", "b"):
        telling.create(PODS, {"metadata": {"name": name}})
    assert messages == ['say "please"', "another, too"]
    server.next(f"POST {PODS}", warned)
    api.create(PODS, {"metadata": {"name": "c"}})
    assert len(messages) == 2
