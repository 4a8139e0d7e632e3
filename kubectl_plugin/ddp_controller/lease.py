"""Leader election by a Lease: at most one controller decides at a time, as in client-go's leaderelection.

The time of expiry is measured with this process's own clock, from the moment at which it saw the last renewal. Clocks
of different nodes are not compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.errors import AlreadyExists, DdpError, NotFound

NAME: Final = "ddp-controller"
LEASE_SECONDS: Final = 15
"""Time without a renewal after which another controller takes over."""
DEADLINE_SECONDS: Final = 10.0
"""Time after its last renewal at which the holder stops deciding. The rest of the lease is a margin for a request that
is under way."""
RENEW_SECONDS: Final = 3.0


class Lease:
    """Candidacy of this process."""

    def __init__(self, api: Api, namespace: str, identity: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{NAME}"
        self._identity = identity
        self._clock = clock
        self._renewed: float | None = None
        """Time before the last successful renewal; None if another holds the lease."""
        self._seen: tuple[Any, float] = (None, clock())
        """Last renewal by another holder, and the time at which it was first seen."""

    @property
    def is_leader(self) -> bool:
        """True if this process may decide now."""
        return self._renewed is not None and self._clock() - self._renewed < DEADLINE_SECONDS

    def try_acquire_or_renew(self) -> bool:
        """Acquire or renew the lease if it is due. Returns :attr:`is_leader`; an unreachable server is not an error."""
        now = self._clock()
        if self._renewed is None or now - self._renewed >= RENEW_SECONDS:
            try:
                self._renewed = now if self._acquire(now) else None
            except (Conflict, AlreadyExists):
                self._renewed = None
            except DdpError:  # the deadline decides
                pass
        return self.is_leader

    def release(self) -> None:
        """Give the lease back, so that another controller can take over immediately."""
        if self.is_leader:
            current = self._api.get(self._path)
            if current["spec"].get("holderIdentity") == self._identity:
                self._write(current, {"holderIdentity": "", "leaseDurationSeconds": 1})
        self._renewed = None

    def _acquire(self, now: float) -> bool:
        try:
            current = self._api.get(self._path)
        except NotFound:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}}
            self._api.create(self._collection, {**lease, "spec": {**self._claim(), "leaseTransitions": 0}})
            return True
        spec = current.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder == self._identity:
            self._write(current, {"renewTime": _micro_time()})
            return True
        if holder and not self._is_expired(spec, now):
            return False
        self._write(current, {**self._claim(), "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1})
        return True

    def _is_expired(self, spec: dict[str, Any], now: float) -> bool:
        renewal = (spec.get("holderIdentity"), spec.get("renewTime"))
        if renewal != self._seen[0]:
            self._seen = (renewal, now)
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    def _claim(self) -> dict[str, Any]:
        now = _micro_time()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": now,
            "renewTime": now,
        }

    def _write(self, current: dict[str, Any], spec: dict[str, Any]) -> None:
        metadata = {"resourceVersion": current["metadata"]["resourceVersion"]}
        self._api.merge(self._path, {"metadata": metadata, "spec": spec})


def _micro_time() -> str:
    """Return the time in the format of Lease's fields."""
    moment = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e6):06d}Z"
