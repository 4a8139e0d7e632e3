"""Progress reports to Kubeflow Trainer, for ``status.trainerStatus`` of a TrainJob.

Kubeflow Trainer (2.2 and later) has the feature gate TrainJobStatus. With it, every pod of a TrainJob receives the
address of a status server, a certificate and a token. The aggregator of rank 0's pod posts progress, remaining time and
a few metrics, at most every ten seconds. :class:`Reporter` posts from a separate thread, so a slow, refusing or missing
server does not affect the training.

Source: KEP-2779 of kubeflow/trainer, and ``UpdateTrainJobStatusRequest`` of its API ``trainer.kubeflow.org/v1alpha1``.
"""

from __future__ import annotations

import json
import math
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics.storage.mmap_directory import read_pod_snapshot

SERVER_URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
CA_CERT: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - the name of a variable that names a file
"""Variables set by Kubeflow Trainer: an https address and the paths of two files. The token file is renewed from time
to time.
"""

EVERY_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 300.0
"""Longest pause between failing attempts, in seconds."""
TIMEOUT_SECONDS: Final = 5.0
FAREWELL_SECONDS: Final = 2.0
"""Longest delay of the pod's end by the last report, in seconds."""
MOST_SECONDS: Final = 2**31 - 1
"""Largest value of the API's field, an int32."""
PACE_POINTS: Final = 30
"""Readings from which the remaining time is estimated: five minutes."""

STATUS_METRICS: Final[Mapping[str, Metric]] = {
    "step": Metric.STEP,
    "epoch": Metric.EPOCH,
    "loss": Metric.LOSS,
    "learning_rate": Metric.LEARNING_RATE,
}
"""Name in the status → metric of this package."""


class JobProgress:
    """Progress of the job in the form of the API, from the numbers of rank 0."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=PACE_POINTS)

    def status(self, values: Mapping[str, float], now: float) -> dict[str, Any] | None:
        """Return the status; None before the first step.

        Args:
            values: Numbers of rank 0, by metric name.
            now: Seconds of a monotonic clock.
        """
        step = values.get(Metric.STEP)
        if step is None or not math.isfinite(step):
            return None
        if self._seen and step < self._seen[-1][1]:  # the job returned to a checkpoint
            self._seen.clear()
        self._seen.append((now, step))
        metrics = {name: values.get(key) for name, key in STATUS_METRICS.items()}
        status: dict[str, Any] = {
            "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "metrics": [
                {"name": name, "value": f"{value:.6g}"} for name, value in metrics.items() if value is not None
            ],
        }
        planned = values.get(Metric.STEPS_PLANNED) or 0.0
        if planned > 0:
            status["progressPercentage"] = int(max(0.0, min(100.0, 100.0 * step / planned)))
            left = self._seconds_left(planned - step)
            if left is not None:
                status["estimatedRemainingSeconds"] = left
        return status

    def _seconds_left(self, steps: float) -> int | None:
        if steps <= 0:
            return 0
        (then, first), (now, last) = self._seen[0], self._seen[-1]
        return None if last <= first else min(MOST_SECONDS, round(steps * (now - then) / (last - first)))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are refused, because the token is for one server."""

    def redirect_request(self, *_: object) -> None:
        """Return None, which refuses the redirect."""


class StatusClient:
    """Client of Kubeflow Trainer's status server. Its methods raise OSError and ValueError on failure."""

    def __init__(self, url: str, certificate: str, token: str) -> None:
        if not url.startswith("https://"):
            raise ValueError(f"${SERVER_URL} is {url!r}, and a token goes over https alone")
        self._url, self._token = url, Path(token)
        self._tls = ssl.create_default_context(cafile=certificate or None)

    def post(self, status: Mapping[str, Any], timeout: float = TIMEOUT_SECONDS) -> None:
        """Send a status."""
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
        body = json.dumps({"trainerStatus": status}, allow_nan=False).encode()
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310 - https, see above
        # No proxy: the server is in the cluster.
        ways = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls), _NoRedirect())
        with urllib.request.build_opener(*ways).open(request, timeout=timeout) as answer:
            answer.read(1 << 16)


class Reporter:
    """Thread that reports the progress of rank 0 to the server until :meth:`stop`.

    Rank 0 is read from this pod's metrics files.
    """

    def __init__(self, directory: Path, server: StatusClient, every_seconds: float = EVERY_SECONDS) -> None:
        self._directory, self._server, self._every = directory, server, every_seconds
        self._progress = JobProgress()
        self._ended = threading.Event()
        self._posted: dict[str, Any] = {}
        self._has_failed = False
        threading.Thread(target=self._run, name="trainjob-status", daemon=True).start()

    def stop(self) -> None:
        """Send a last report, and wait at most :data:`FAREWELL_SECONDS` for it."""
        self._ended.set()
        last = threading.Thread(target=self._post_if_changed, args=(FAREWELL_SECONDS,), daemon=True)
        last.start()
        last.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        pause = self._every
        while not self._ended.wait(pause):
            is_well = self._post_if_changed(TIMEOUT_SECONDS)
            pause = self._every if is_well else min(2 * pause, max(self._every, LONGEST_PAUSE_SECONDS))

    def _post_if_changed(self, timeout: float) -> bool:
        """Send the status if it has changed. Returns False if that failed."""
        try:
            slot = next((slot for slot in read_pod_snapshot(self._directory).ranks if slot.rank == 0), None)
            status = self._progress.status(slot.file.values, time.monotonic()) if slot is not None else None
            if status is None or _without_time(status) == self._posted:
                return True
            self._server.post(status, timeout)
            self._posted = _without_time(status)
        except Exception as error:  # noqa: BLE001 - a failed report must not fail the training
            if not self._has_failed:  # attempts are repeated
                _warn(f"{_reason(error)}; it is tried again")
            self._has_failed = True
            return False
        return True


def reporter(directory: Path, environ: Mapping[str, str] = os.environ) -> Reporter | None:
    """Start a reporter if Kubeflow Trainer has set its variables. Never raises.

    Returns:
        The reporter; None without the variables or if they are invalid.
    """
    url = environ.get(SERVER_URL)
    if not url:
        return None
    try:
        return Reporter(directory, StatusClient(url, environ.get(CA_CERT, ""), environ.get(TOKEN, "")))
    except (OSError, ValueError) as error:
        _warn(_reason(error))
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        answer = error.read(300).decode(errors="replace").strip()
        return f"the server answers {error.code} {answer}".strip()
    return f"{type(error).__name__}: {error}"


def _warn(reason: str) -> None:
    print(
        f"aggregate: the TrainJob's status does not report progress; training continues: {reason}.",
        file=sys.stderr,
        flush=True,
    )


def _without_time(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in status.items() if name not in {"lastUpdatedTime", "estimatedRemainingSeconds"}
    }
