"""Output of one pod, with limits: its metrics through the API server's proxy, and its log lines.

Each log line is returned once, over connections that may break. Lines are requested with timestamps, which are in the
zone of the pod's node, and returned with them in UTC. A new connection starts at the time of the last line. The kubelet
resolves that time only to the second, so the lines of that second are repeated and dropped by their full timestamp.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from urllib3.exceptions import HTTPError, ReadTimeoutError

from ddp_trainer.common.constants import Port, PortName
from kubectl_ddp.backends.cluster.http.api import Api, pod_path
from kubectl_ddp.backends.cluster.read.reflector import cut, lines
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, Unreachable
from kubectl_ddp.kube.objects import Object, as_log_timestamp, log_timestamp, main_container
from kubectl_ddp.util.bounded_response import POD_ANSWER, ResponseLimits
from kubectl_ddp.util.concurrency import Stop


def served(api: Api, pod: Object, path: str, limits: ResponseLimits = POD_ANSWER) -> str:
    """Return the response of the pod's metrics port at a path. Raises Unreachable and Forbidden."""
    try:
        return api.text(f"{pod_path(pod)}:{_port(pod)}/proxy{path}", limits=limits)
    except Forbidden:
        raise
    except DdpError as error:
        name = pod["metadata"]["name"]
        raise Unreachable(f"Pod '{name}' does not answer with its metrics: {error.message}") from error


def _port(pod: Object) -> int:
    ports = next((c.get("ports") or () for c in pod["spec"]["containers"] if c["name"] == main_container(pod)), ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PortName.METRICS), Port.METRICS)


SILENCE_SECONDS: Final = 240.0
"""Seconds without a line after which the connection is replaced, because it may be dead without an error."""

MAX_UNAVAILABLE_SECONDS: Final = 300.0
"""Seconds of unavailability of the API server or the node after which following ends."""

PAUSE_SECONDS: Final = 0.5
"""Pause between polls of a container that has not started, and before a new connection, in seconds."""

MOST_LINE_BYTES: Final = 16 << 10
"""Longest line; the rest of a longer one is left out. A container runtime writes records of at most 16 KiB."""

MOST_TAIL_BYTES: Final = 4 << 20
"""Largest size of the last lines that are kept together; older ones are left out."""

MOST_TAIL_READ_BYTES: Final = 64 << 20
"""Largest size of the last lines that the kubelet sends."""


class PodLogs:
    """Log of one pod, identified by its uid. A new pod of the same name is another pod."""

    def __init__(
        self,
        api: Api,
        path: str,
        pod: Object,
        *,
        stop: Stop | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._uid = str(pod["metadata"]["uid"])
        self._name = str(pod["metadata"]["name"])
        self._container = main_container(pod)
        self._stop = stop or Stop()
        self._sleep = sleep or self._stop.wait
        self._last = ""
        """Time of the last returned line."""
        self._given_at_last = 0
        """Number of returned lines with exactly that time."""

    def read(self, *, tail: int | None, since: str | None) -> Iterator[str]:
        """Return the existing lines, each prefixed with its time; none before the container has started."""
        pod = self._pod()
        if pod is None:
            raise NotFound(f"Pod '{self._name}' is gone, and its lines with it.")
        if _state(pod, self._container) != "waiting":
            found = self._stream(tail=tail, since=since)
            yield from found if tail is None else _last_lines(islice(found, tail))

    def follow(self, *, tail: int | None, since: str | None) -> Iterator[str]:
        """Yield the existing lines and further ones, until the container ends or the stop is requested."""
        failing_since: float | None = None
        is_over = False
        while not is_over and not self._stop.is_requested:
            try:
                pod = self._started_pod()
                if pod is None:
                    return
                # After the container has ended, read to the end once more, because the connection may have ended just
                # before.
                is_over = _state(pod, self._container) == "terminated" and not _restarts(pod)
                for line in self._stream(tail=tail, since=since, follow=not is_over):
                    failing_since = None
                    yield line
            except NotFound:
                return
            except ReadTimeoutError:  # no output is not an error
                is_over, failing_since = False, None
            except (Unreachable, HTTPError) as error:
                is_over = False
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > MAX_UNAVAILABLE_SECONDS:
                    raise self._lost(error) from error
            if not is_over:
                self._sleep(PAUSE_SECONDS)

    def _stream(self, *, tail: int | None, since: str | None, follow: bool = False) -> Iterator[str]:
        """Yield the lines of one connection that are newer than those already returned."""
        query = {"container": self._container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        query |= {"sinceTime": self._last or since or ""} if self._last or since else {}
        if tail is not None and not self._last:
            query |= {"tailLines": str(tail)} | ({} if follow else {"limitBytes": str(MOST_TAIL_READ_BYTES)})
        known, again = self._last, self._given_at_last
        response = self._api.stream(f"{self._path}/log", silence_seconds=SILENCE_SECONDS, **query)
        try:
            with self._stop.call_on_stop(lambda: cut(response)):
                for raw in lines(response, MOST_LINE_BYTES):
                    moment, text = self._timed(raw.decode(errors="replace"))
                    if moment < known:
                        continue
                    if moment == known and again > 0:
                        again -= 1
                        continue
                    self._given_at_last = self._given_at_last + 1 if moment == self._last else 1
                    self._last = moment
                    yield f"{moment} {text}"
        finally:
            response.close()

    def _timed(self, line: str) -> tuple[str, str]:
        """Return the time of a line in UTC, and its text. Errors of the kubelet have no time, and get the last one."""
        moment, _, text = line.partition(" ")
        if (found := as_log_timestamp(moment)) is not None:
            return found, text
        return self._last or log_timestamp(time.time_ns()), line

    def _started_pod(self) -> Object | None:
        """Return the pod once its container has started; ``None`` if the pod is deleted, or the stop is requested."""
        while not self._stop.is_requested:
            pod = self._pod()
            if pod is None or _state(pod, self._container) != "waiting":
                return pod
            self._sleep(PAUSE_SECONDS)
        return None

    def _pod(self) -> Object | None:
        """Return the current pod; ``None`` if it is deleted, or replaced by another of the same name."""
        try:
            pod = self._api.get(self._path)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == self._uid else None

    def _lost(self, error: Exception) -> Unreachable:
        if isinstance(error, Unreachable):
            return error
        return Unreachable(f"The lines of pod '{self._name}' stopped coming: {error}.")


def _last_lines(lines: Iterable[str]) -> Iterator[str]:
    """Return the last lines within :data:`MOST_TAIL_BYTES`, which callers keep in memory."""
    newest: deque[str] = deque()
    size = 0
    for line in lines:
        newest.append(line)
        size += sys.getsizeof(line)
        while size > MOST_TAIL_BYTES:
            size -= sys.getsizeof(newest.popleft())
    return iter(newest)


def _state(pod: Object, container: str) -> str:
    """Return ``waiting``, ``running`` or ``terminated``. Without statuses, the pod's phase decides."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status["name"] == container and status.get("state"):
            return str(next(iter(status["state"])))
    return "terminated" if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"} else "waiting"


def _restarts(pod: Object) -> bool:
    """Return whether the kubelet will restart the container in this pod."""
    return bool(pod["spec"].get("restartPolicy") != "Never" and pod.get("status", {}).get("phase") == "Running")
