"""Source of time series inside the job: the aggregator's history of running pods, else the end of their logs."""

from __future__ import annotations

from functools import partial

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.report.series import Series, read
from kubectl_ddp.status.termination_message import workers
from kubectl_ddp.util.concurrency import each


def load_series(backend: Backend, snapshot: Snapshot) -> list[Series]:
    """Return the series of all worker pods, queried in parallel; pods without history are left out."""
    told = each(partial(_of_pod, backend), workers(snapshot.pods))
    return [series for of_pod in told for series in of_pod]


def _of_pod(backend: Backend, pod: Object) -> list[Series]:
    try:
        text = backend.metrics_history(pod)
    except DdpError:  # access denied, or the pod has gone: continue without it
        return []
    return read(text, str(pod["metadata"]["name"])) if text is not None else []
