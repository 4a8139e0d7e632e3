"""The lines of one pod's container, none twice, over connections that break.

Each line is asked for with its time. A new connection begins at the time of the last line; the kubelet knows that time
to the second only, so the lines of that second come again and are dropped by their full time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from urllib3.exceptions import HTTPError, ReadTimeoutError

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.reflector import lines
from kubectl_ddp.cluster.resources import main_container
from kubectl_ddp.errors import NotFound, Unreachable

SILENCE_SECONDS: Final = 240.0
"""After so long without a line the connection is made anew: it may be dead, and no one would say so."""

PATIENCE_SECONDS: Final = 300.0
"""How long the API server or the node may be away before a follower gives up."""

PAUSE_SECONDS: Final = 0.5
"""Between two looks at a container that has not started, and before a connection is made anew."""


class PodLogs:
    """What one pod wrote. The pod is known by its uid: its successor of the same name is another one."""

    def __init__(self, api: Api, path: str, pod: Object, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._path = path
        self._uid = str(pod["metadata"]["uid"])
        self._name = str(pod["metadata"]["name"])
        self._container = main_container(pod)
        self._sleep = sleep
        self._last = ""
        """Time of the last line that was given out."""
        self._given_at_last = 0
        """How many lines of that very time were given out."""

    def read(self, *, tail: int | None, since: str | None) -> Iterator[str]:
        """The lines that are there, each with its time in front; none before the container has started."""
        pod = self._pod()
        if pod is None:
            raise NotFound(f"Pod '{self._name}' is gone, and its lines with it.")
        if _state(pod, self._container) != "waiting":
            yield from self._stream(tail=tail, since=since)

    def follow(self, *, tail: int | None, since: str | None) -> Iterator[str]:
        """The lines that are there and those that come, until the container is gone."""
        failing_since: float | None = None
        is_over = False
        while not is_over:
            try:
                pod = self._started_pod()
                if pod is None:
                    return
                # Read to the end once more when the container has ended: the connection may have, a moment before it.
                is_over = _state(pod, self._container) == "terminated" and not _restarts(pod)
                for line in self._stream(tail=tail, since=since, follow=not is_over):
                    failing_since = None
                    yield line
            except NotFound:
                return
            except ReadTimeoutError:  # nothing to say is no failure
                is_over, failing_since = False, None
            except (Unreachable, HTTPError) as error:
                is_over = False
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > PATIENCE_SECONDS:
                    raise self._lost(error) from error
            if not is_over:
                self._sleep(PAUSE_SECONDS)

    def _stream(self, *, tail: int | None, since: str | None, follow: bool = False) -> Iterator[str]:
        """The lines of one connection that are newer than what was given out."""
        query = {"container": self._container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        query |= {"sinceTime": self._last or since or ""} if self._last or since else {}
        query |= {"tailLines": str(tail)} if tail is not None and not self._last else {}
        known, again = self._last, self._given_at_last
        response = self._api.stream(f"{self._path}/log", silence_seconds=SILENCE_SECONDS, **query)
        try:
            for raw in lines(response):
                line = raw.decode(errors="replace")
                moment = line.partition(" ")[0]
                if moment < known:
                    continue
                if moment == known and again > 0:
                    again -= 1
                    continue
                self._given_at_last = self._given_at_last + 1 if moment == self._last else 1
                self._last = moment
                yield line
        finally:
            response.close()

    def _started_pod(self) -> Object | None:
        """The pod, once its container has started; ``None`` when it is gone."""
        while True:
            pod = self._pod()
            if pod is None or _state(pod, self._container) != "waiting":
                return pod
            self._sleep(PAUSE_SECONDS)

    def _pod(self) -> Object | None:
        """The pod as it is now; ``None`` once it is gone, or another has its name."""
        try:
            pod = self._api.get(self._path)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == self._uid else None

    def _lost(self, error: Exception) -> Unreachable:
        if isinstance(error, Unreachable):
            return error
        return Unreachable(f"The lines of pod '{self._name}' stopped coming: {error}.")


def _state(pod: Object, container: str) -> str:
    """``waiting``, ``running`` or ``terminated``; a pod without statuses waits, or was ended before it began."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status["name"] == container and status.get("state"):
            return str(next(iter(status["state"])))
    return "terminated" if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"} else "waiting"


def _restarts(pod: Object) -> bool:
    """Whether the kubelet will start the container again in this very pod."""
    return bool(pod["spec"].get("restartPolicy") != "Never" and pod.get("status", {}).get("phase") == "Running")
