"""An API server in memory, spoken to over real HTTP.

It keeps objects by their path, counts resource versions, pages, watches, merges and deletes as the real one does. What
it does not do: admission, ownership, field management (an apply is a merge), access rules. Those are tested on a real
cluster. A test may queue answers for the next requests, cut every watch, and drop the history.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.serving import in_thread

Json = dict[str, Any]

GROUPS: Mapping[str, Mapping[str, str]] = {
    "/api/v1": {
        "Pod": "pods",
        "Service": "services",
        "ConfigMap": "configmaps",
        "Event": "events",
        "Secret": "secrets",
    },
    "/apis/batch/v1": {"Job": "jobs"},
    "/apis/networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "/apis/kubeflow.org/v1": {"PyTorchJob": "pytorchjobs"},
    "/apis/monitoring.coreos.com/v1": {"PodMonitor": "podmonitors"},
}
JOBS, PODS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs", "/api/v1/namespaces/team/pods"
EVENTS, CONFIG_MAPS = "/api/v1/namespaces/team/events", "/api/v1/namespaces/team/configmaps"
"""Collections of a namespace."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json | str = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection in the middle of the body."""
    silence: float = 0.0
    """Seconds of silence before that."""
    raw: Callable[[], Iterator[bytes]] | None = None
    """Bytes of the whole answer with its head, instead of the other fields. The connection ends after them."""


ALL_RULES = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
ALL_ALLOWED = Answer(201, {"status": {"allowed": True, "incomplete": False, "resourceRules": ALL_RULES}})
"""The answer to a review of a user who has every right."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def status(code: int, reason: str, message: str, **details: Any) -> Json:
    """A refusal as the API server words it."""
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


class ApiServer:
    """The objects, and the requests for them."""

    def __init__(self, groups: Mapping[str, Mapping[str, str]] = GROUPS) -> None:
        self.groups = groups
        self.objects: dict[str, Json] = {}
        self.requests: list[Request] = []
        self.answers: dict[str, deque[Answer]] = {}
        """``METHOD path`` → answers to the next such requests, which never reach the objects."""
        self.page = 500
        self.minor = "36+"
        self.url = ""
        self._version = 100
        self._forgotten = 0
        self._events: list[tuple[int, str, Json]] = []
        self._changed = threading.Condition()
        self.epoch = 0
        self._is_closed = False

    # -- what a test does ----------------------------------------------------------------------------------------------

    def put(self, path: str, item: Json) -> Json:
        """Create or replace an object."""
        with self._changed:
            kind = "MODIFIED" if path in self.objects else "ADDED"
            before = self.objects.get(path, {"metadata": {"uid": str(uuid.uuid4())}})["metadata"]
            namespace = path.partition("/namespaces/")[2].partition("/")[0]
            details = {"name": path.rpartition("/")[2], "uid": before["uid"], "namespace": namespace}
            self._version += 1
            stored = {
                **item,
                "metadata": {**details, **item.get("metadata", {}), "resourceVersion": str(self._version)},
            }
            self.objects[path] = stored
            self._tell(kind, path, stored)
            return stored

    def drop(self, path: str) -> None:
        """Delete an object."""
        with self._changed:
            self._version += 1
            ended = self.objects.pop(path)
            ended = {**ended, "metadata": {**ended["metadata"], "resourceVersion": str(self._version)}}
            self._tell("DELETED", path, ended)

    def collect_garbage(self) -> None:
        """Delete what is owned by what is gone, as a cluster does."""
        uids = {item["metadata"]["uid"] for item in self.objects.values()}
        for path, item in [*self.objects.items()]:
            owners = item["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.drop(path)

    def next(self, request: str, *answers: Answer) -> None:
        """Answer the next requests of this kind so."""
        self.answers.setdefault(request, deque()).extend(answers)

    def wait_until_answered(self, request: str) -> None:
        """Return when every answer that was queued for it was given."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self.answers.get(request), timeout=20)

    def cut_watches(self) -> None:
        """End every watch, as a load balancer does."""
        with self._changed:
            self.epoch += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Remember no resource version before the present one."""
        with self._changed:
            self._forgotten = self._version

    def asked(self, method: str) -> list[str]:
        """Paths of all requests of one method, in order."""
        return [request.path for request in self.requests if request.method == method]

    # -- what the server does ------------------------------------------------------------------------------------------

    def _tell(self, kind: str, path: str, item: Json) -> None:
        self._events.append((self._version, kind, {**item, "_path": path}))
        self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Do nothing for so long, or until the server closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout=seconds)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def answer(self, request: Request) -> Answer:
        """Answer a request other than a watch from the objects."""
        with self._changed:
            if queued := self.answers.get(str(request)):
                self._changed.notify_all()
                return queued.popleft()
        if request.path in self.groups:
            kinds = [{"kind": kind, "name": plural} for kind, plural in self.groups[request.path].items()]
            return Answer(200, {"kind": "APIResourceList", "resources": kinds})
        if request.path == "/version":
            return Answer(200, {"major": "1", "minor": self.minor})
        if not any(f"/{plural}/" in f"{request.path}/" for kinds in self.groups.values() for plural in kinds.values()):
            return Answer(404, "404 page not found\n")
        return getattr(self, f"_{request.method.lower()}")(request)

    def _get(self, request: Request) -> Answer:
        if request.path in self.objects:
            return Answer(200, self.objects[request.path])
        if request.path.rpartition("/")[2] not in {
            plural for kinds in self.groups.values() for plural in kinds.values()
        }:
            return self._missing(request.path)
        found = [item for path, item in sorted(self.objects.items()) if self._selects(request, path, item)]
        start = int(request.query.get("continue", 0))
        end = start + min(self.page, int(request.query.get("limit", self.page)))
        details: Json = {"resourceVersion": str(self._version)}
        if end < len(found):
            details["continue"] = str(end)
        bare = [{name: value for name, value in item.items() if name not in {"kind", "apiVersion"}} for item in found]
        return Answer(200, {"kind": "List", "metadata": details, "items": bare[start:end]})

    def _post(self, request: Request) -> Answer:
        name = request.body["metadata"]["name"]
        path = f"{request.path}/{name}"
        if path in self.objects:
            return Answer(409, status(409, "AlreadyExists", f'"{name}" already exists', name=name))
        if request.query.get("dryRun"):
            return Answer(201, {**request.body, "dry": True})
        metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1} | request.body["metadata"]
        return Answer(201, self.put(path, {**request.body, "metadata": metadata}))

    def _patch(self, request: Request) -> Answer:
        path, of_status = request.path.removesuffix("/status"), request.path.endswith("/status")
        if path not in self.objects:
            return self._missing(path)
        old = self.objects[path]
        for key in ("uid", "resourceVersion"):
            if request.body.get("metadata", {}).get(key) not in {None, old["metadata"][key]}:
                return Answer(409, status(409, "Conflict", f"the {key} in the precondition does not match", name="x"))
        change = {"status": request.body["status"]} if of_status else request.body
        merged = _merged(old, change)
        if not of_status and merged.get("spec") != old.get("spec"):
            merged["metadata"] = {**merged["metadata"], "generation": old["metadata"].get("generation", 1) + 1}
        return Answer(200, merged if request.query.get("dryRun") else self.put(path, merged))

    def _delete(self, request: Request) -> Answer:
        if request.path not in self.objects:
            return self._missing(request.path)
        for key, wanted in request.body["preconditions"].items():
            if self.objects[request.path]["metadata"].get(key) != wanted:
                return Answer(409, status(409, "Conflict", f"the {key} in the precondition does not match", name="x"))
        self.drop(request.path)
        return Answer(200, {"kind": "Status", "status": "Success"})

    def _missing(self, path: str) -> Answer:
        name = path.rpartition("/")[2]
        return Answer(404, status(404, "NotFound", f'"{name}" not found', name=name))

    def _selects(self, request: Request, path: str, item: Json) -> bool:
        folder = path.rpartition("/")[0]
        if "/namespaces/" not in request.path and folder != request.path:  # of all namespaces
            version, _, plural = request.path.rpartition("/")
            is_within = folder.startswith(f"{version}/namespaces/") and folder.endswith(f"/{plural}")
            if not is_within and folder != request.path:  # else of no namespace
                return False
        elif folder != request.path:
            return False
        if not _has_labels(item, request.query.get("labelSelector", "")):
            return False
        return _has_fields(item, request.query.get("fieldSelector", ""))

    def watch(self, request: Request, epoch: int) -> Iterator[Json]:
        """Events from the asked version on, until the watches of this epoch are cut or the server closes."""
        seen = int(request.query["resourceVersion"])
        if seen < self._forgotten:
            yield {"type": "ERROR", "object": status(410, "Expired", "too old resource version")}
            return
        while True:
            with self._changed:
                news = [event for event in self._events if event[0] > seen]
                while not news:
                    if self.epoch != epoch or self._is_closed:
                        return
                    self._changed.wait(timeout=0.5)
                    news = [event for event in self._events if event[0] > seen]
            for version, kind, item in news:
                seen = version
                if self._selects(request, item["_path"], item):
                    yield {"type": kind, "object": {key: value for key, value in item.items() if key != "_path"}}


def _has_labels(item: Json, selector: str) -> bool:
    """Return whether a label selector ``key``, ``key=value`` or ``key in (a,b)`` selects an object."""
    labels = item["metadata"].get("labels") or {}
    label, is_set, words = selector.partition(" in ")
    if is_set:
        return labels.get(label) in words.strip("()").split(",")
    label, _, value = selector.partition("=")
    return not label or (label in labels and value in {"", labels[label]})


def _has_fields(item: Json, selector: str) -> bool:
    """Return whether a field selector ``path=value,path=value`` selects an object."""
    for part in filter(None, selector.split(",")):
        path, _, value = part.partition("=")
        found: Any = item
        for key in path.split("."):
            found = found.get(key, {})
        if found != value:
            return False
    return True


def _merged(old: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    base = old if isinstance(old, dict) else {}
    saved = {name: value for name, value in base.items() if name not in change}
    return saved | {name: _merged(base.get(name), value) for name, value in change.items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the client's word
    api: ApiServer

    def _serve(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        request = Request(self.command, split.path, dict(parse_qsl(split.query)), self.headers, body)
        self.api.requests.append(request)
        epoch = self.api.epoch  # before the look at the answers: what is queued and then cut off must be met
        try:
            if "watch" in request.query and not self.api.answers.get(str(request)):
                self._stream(json.dumps(event) + "\n" for event in self.api.watch(request, epoch))
            else:
                self._say(self.api.answer(request))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _say(self, answer: Answer) -> None:
        if answer.raw:
            self.close_connection = True
            for piece in answer.raw():
                self.wfile.write(piece)
            return
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        body = text.encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (1 if answer.cut else 0)))
        self.end_headers()
        self.wfile.write(body)
        if answer.cut:
            self.wfile.flush()
            self.api.pause(answer.silence)
            self.close_connection = True

    def _stream(self, chunks: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            data = chunk.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Tests read :attr:`ApiServer.requests` instead."""


@contextmanager
def serving(api: ApiServer, port: int = 0) -> Iterator[ApiServer]:
    """The server, on a free port unless one is given."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"api": api}))
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    with in_thread(server), closing(api):
        yield api


def kubeconfig(
    folder: Path,
    server: str,
    *,
    namespace: str | None = "team",
    user: Json | None = None,
    name: str = "test",
    **cluster: Any,
) -> Path:
    """A kubeconfig of one context; ``cluster`` are more fields of its cluster."""
    context: Json = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": {**cluster, "server": server}}],
                "users": [{"name": name, "user": user or {"token": "letmein"}}],
                "contexts": [{"name": name, "context": context}],
            }
        )
    )
    return path
