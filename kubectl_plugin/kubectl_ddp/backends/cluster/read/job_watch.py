"""Watch of one job: watches of its object, its pods and its events, combined into a sequence of snapshots.

A selector of events has no prefix of names, and one watch per pod would be too many. So a watch of events is limited to
the reasons that its caller needs: the events of one reason are few.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.read.jobs import is_named_after, of_one, path, with_type_meta
from kubectl_ddp.backends.cluster.read.kueue_workloads import inactive_uids
from kubectl_ddp.backends.cluster.read.reflector import Reflector, wait, watch_into_queue
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import queued
from kubectl_ddp.kube.objects import Object, Queued, Snapshot
from kubectl_ddp.util.concurrency import Stop

JOIN_SECONDS: Final = 2.0
"""Seconds to wait for a stopped watch to end. A watch that is connecting ends later by itself."""


def watch(api: Api, job: Object, namespace: str, reasons: Collection[str] | None, stop: Stop) -> Iterator[Snapshot]:
    """Yield the job now, and after each change of it, its pods or its events. Ends when it is deleted, or stopped."""
    name, kind = str(job["metadata"]["name"]), job_kinds.engine_of(job)
    jobs = Reflector(api, path(kind, namespace), fieldSelector=f"metadata.name={name}")
    pods = Reflector(api, collection("v1", "pods", namespace), labelSelector=f"{Label.JOB}={name}")
    selectors = [f"involvedObject.kind=Pod,reason={reason}" for reason in reasons or ()]
    queries: list[dict[str, str]] = [{}] if reasons is None else [{"fieldSelector": selector} for selector in selectors]
    events = [
        Reflector(
            api,
            collection("v1", "events", namespace),
            reduce=lambda event: event if is_named_after(event, name) else None,
            **query,
        )
        for query in queries
    ]
    changes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    reflectors = [jobs, pods]
    for reflector in (jobs, pods):
        reflector.read()
    with contextlib.suppress(Forbidden):
        for reflector in events:
            reflector.read()
            reflectors.append(reflector)
    threads = [
        threading.Thread(target=watch_into_queue, args=(reflector, changes), name=f"watch {name}", daemon=True)
        for reflector in reflectors
    ]
    for thread in threads:
        thread.start()
    try:
        with stop.call_on_stop(lambda: changes.put(None)):
            while not stop.is_requested:
                found = [item for item in jobs.objects() if item["metadata"]["uid"] == job["metadata"]["uid"]]
                if not found:
                    return
                current = with_type_meta(kind, found[0])
                current_events = [event for reflector in events for event in reflector.objects()]
                yield replace(of_one(current, pods.objects(), current_events), queued=_in_queue(api, current))
                wait(changes)
    finally:
        for reflector in reflectors:
            reflector.stop()
        for thread in threads:  # a thread that runs at interpreter shutdown may print errors to stderr
            thread.join(timeout=JOIN_SECONDS)


def _in_queue(api: Api, job: Object) -> Queued | None:
    """Return the queue of a watched job, without its position, which changes too often."""
    at = queued(job)
    is_open = at is not None and not at.is_admitted
    return queued(job, held=inactive_uids(api, [job])) if is_open else at
