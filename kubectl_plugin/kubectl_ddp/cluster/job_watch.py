"""One job, watched: its object, its pods and its events are three watches that become one row of snapshots."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ddp_trainer.common.constants import Label
from kubectl_ddp.backend import Object, Queued, Snapshot
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.changes import wait, watch_into_queue
from kubectl_ddp.cluster.job_objects import is_named_after
from kubectl_ddp.cluster.jobs import kind_of, path, with_type_meta
from kubectl_ddp.cluster.kueue_workloads import inactive_uids
from kubectl_ddp.cluster.reflector import Reflector
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.cluster.snapshots import of_one
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.queued import queued

JOIN_SECONDS: Final = 2.0
"""How long a watch that was left may take to end; one that is just connecting ends later, and by itself."""


def watch(api: Api, job: Object, namespace: str) -> Iterator[Snapshot]:
    """The job now, and again whenever it, one of its pods or its events changed; ends when it is deleted."""
    name, kind = str(job["metadata"]["name"]), kind_of(job)
    jobs = Reflector(api, path(kind, namespace), fieldSelector=f"metadata.name={name}")
    pods = Reflector(api, collection("v1", "pods", namespace), labelSelector=f"{Label.JOB}={name}")
    events = Reflector(api, collection("v1", "events", namespace), keep=lambda event: is_named_after(event, name))
    changes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    reflectors = [jobs, pods]
    for reflector in (jobs, pods):
        reflector.read()
    with contextlib.suppress(Forbidden):
        events.read()
        reflectors.append(events)
    threads = [
        threading.Thread(target=watch_into_queue, args=(reflector, changes), name=f"watch {name}", daemon=True)
        for reflector in reflectors
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            found = [each for each in jobs.objects() if each["metadata"]["uid"] == job["metadata"]["uid"]]
            if not found:
                return
            now = with_type_meta(kind, found[0])
            yield replace(of_one(now, pods.objects(), events.objects()), queued=_in_queue(api, now))
            wait(changes)
    finally:
        for reflector in reflectors:
            reflector.stop()
        for thread in threads:  # one that is still there when Python ends may complain on stderr
            thread.join(timeout=JOIN_SECONDS)


def _in_queue(api: Api, job: Object) -> Queued | None:
    """Where a job stands that is watched: its place in line changes too often to be told."""
    at = queued(job)
    is_open = at is not None and not at.is_admitted
    return queued(job, held=inactive_uids(api, [job])) if is_open else at
