"""All versions of the objects of one kind, in the order in which the API server sent them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from bench.harness import CannotMeasure
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.reflector import Reflector

Json = dict[str, Any]

POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object."""

    time: float
    """Unix time at which the watch returned it."""
    item: Json
    is_deleted: bool = False

    @property
    def number(self) -> int:
        """Resource version: the order of changes over all kinds, as etcd counts them."""
        return int(self.item["metadata"]["resourceVersion"])


class ObjectHistory:
    """Watch of one collection that keeps each version."""

    def __init__(self, api: Api, path: str) -> None:
        self._reflector = Reflector(api, path)
        self._current: dict[str, Json] = {}
        self._versions: list[Version] = []

    def __enter__(self) -> Self:
        """Start the watch."""
        self._reflector.read()
        self._record()
        self._thread = threading.Thread(target=self._reflector.run, args=(self._record,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._reflector.stop()
        self._thread.join()

    def _record(self) -> None:
        now, found = time.time(), {item["metadata"]["uid"]: item for item in self._reflector.objects()}
        for uid, item in found.items():
            if self._current.get(uid) is not item:
                self._versions.append(Version(now, item))
        self._versions += [
            Version(now, item, is_deleted=True) for uid, item in self._current.items() if uid not in found
        ]
        self._current = found

    def versions(self) -> list[Version]:
        """Return all versions until now."""
        return self._versions.copy()

    def wait_for(self, what: str, is_it: Callable[[Version], bool], seconds: float) -> Version:
        """Return the first version with a property. Raises CannotMeasure if none comes."""
        deadline, checked = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            for version in self._versions[checked:]:
                checked += 1
                if is_it(version):
                    return version
            time.sleep(POLL_SECONDS)
        raise CannotMeasure(f"{what} did not happen within {seconds:g} s.")
