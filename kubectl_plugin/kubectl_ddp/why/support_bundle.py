"""Support archive of a job (``kubectl ddp bundle``): bounded in size, and without secrets.

Reads everything once, through the reader of ``why``. ``not-looked-at.txt`` lists what may not be read.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final

from ddp_trainer.common.redacted_objects import redact_object
from ddp_trainer.common.safe_text import clean_text, escape_log_line, redact_text
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object, RelatedKind
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_tables import API_VERSION, job_to_dict, rank_table
from kubectl_ddp.status.termination_message import stores, workers
from kubectl_ddp.util.concurrency import AT_ONCE, map_in_threads
from kubectl_ddp.util.text_table import Style
from kubectl_ddp.version import version
from kubectl_ddp.why.diagnosis import diagnosis_text, diagnosis_to_dict, gather, run_checks
from kubectl_ddp.why.facts import Facts, distinct

LOG_LINES: Final = 5_000
"""Number of last log lines to include per pod."""
LOG_BYTES: Final = 2 << 20
"""Maximum size of one pod's log, in bytes."""
TOTAL_BYTES: Final = 64 << 20
"""Maximum uncompressed size of the archive, in bytes. Files beyond it are listed and left out."""

KINDS: Final = frozenset(RelatedKind) - {RelatedKind.BOUND}
"""Kinds of related objects to include: all but the pods of other jobs."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of the archive."""

    name: str
    content: str


def files(backend: Backend, name: str, *, clock: Callable[[], float] = time.time) -> Iterator[File]:
    """Yield the files of the archive. Raises NotFound, and other errors of reading the job itself."""
    facts = gather(backend, name, also=KINDS, clock=clock)
    persist_result(backend, facts.job, facts.state)
    found = run_checks(facts)
    state = facts.state
    plain = Style()
    yield File("why.txt", clean_text(diagnosis_text(facts, found, plain)) + "\n")
    yield File("why.json", _json(diagnosis_to_dict(facts, found)))
    table = rank_table(state, facts.now).render(plain)
    yield File("status.txt", clean_text(f"{header(state, facts.now, plain)}\n\n{table}\n"))
    yield File("status.json", _json(job_to_dict(state)))
    yield File("versions.json", _json(_versions(backend, facts)))
    yield File("objects/job.json", _json(facts.job))
    for pod in facts.snapshot.pods:
        yield File(f"objects/pods/{pod['metadata']['name']}.json", _json(pod))
    yield File("events.json", _json(distinct([*facts.job_events(), *facts.events_of_claims()])))
    for kind in sorted(KINDS - {RelatedKind.EVENTS}):
        if facts.around.of(kind):
            yield File(f"around/{kind.replace(' ', '-')}.json", _json([_short(item) for item in facts.around.of(kind)]))
    yield from _collect_pod_files(backend, facts)
    if facts.around.unseen:
        yield File("not-looked-at.txt", "\n".join(facts.around.unseen) + "\n")


def write(archive: BinaryIO, folder: str, contents: Iterator[File], *, clock: Callable[[], float] = time.time) -> int:
    """Pack the files into a tar.gz of bounded size, and return their uncompressed size in bytes."""
    total, left_out = 0, []
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file in contents:
            data = file.content.encode()
            if total + len(data) > TOTAL_BYTES:
                left_out.append(file.name)
                continue
            total += len(data)
            _add(tar, f"{folder}/{file.name}", data, clock())
        if left_out:
            _add(tar, f"{folder}/left-out.txt", ("\n".join(left_out) + "\n").encode(), clock())
    return total


def _add(tar: tarfile.TarFile, name: str, data: bytes, moment: float) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(moment), 0o600
    tar.addfile(entry, io.BytesIO(data))


def _json(item: Any) -> str:
    return json.dumps(redact_object(item), indent=1, ensure_ascii=False) + "\n"


def _versions(backend: Backend, facts: Facts) -> Mapping[str, Any]:
    images = {
        container["image"]
        for pod in (
            *facts.snapshot.pods,
            *facts.around.of(RelatedKind.OPERATOR),
            *facts.around.of(RelatedKind.QUEUE_CONTROLLER),
        )
        for container in pod["spec"].get("containers") or ()
        if "image" in container
    }
    return {
        "apiVersion": API_VERSION,
        "kubectl-ddp": version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "where": backend.where,
        "images": sorted(images),
        "kubelets": sorted({_kubelet(node) for node in facts.around.of(RelatedKind.NODES)}),
    }


def _kubelet(node: Object) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return " ".join(str(info.get(key, "")) for key in ("kubeletVersion", "containerRuntimeVersion", "kernelVersion"))


def _short(item: Object) -> Object:
    """Return the useful fields of an object that is not the job's: its status, without data written by its owner."""
    metadata = {
        key: value
        for key, value in item["metadata"].items()
        if key in {"name", "namespace", "labels", "creationTimestamp"}
    }
    spec = item.get("spec") or {}
    fields = {key: spec[key] for key in _WORTH_KNOWING if key in spec}
    status = {key: value for key, value in (item.get("status") or {}).items() if key != "images"}
    return {"metadata": metadata, "spec": fields, "status": status}


_WORTH_KNOWING: Final = (
    *("taints", "unschedulable", "queueName", "priority", "active", "podSets", "clusterQueue", "resourceGroups"),
    *("preemption", "hard", "scopeSelector", "accessModes", "resources", "storageClassName", "volumeName", "nodeName"),
)


def _collect_pod_files(backend: Backend, facts: Facts) -> Iterator[File]:
    """Yield the log and metrics of each pod that answers, several pods at a time."""
    pods = [*workers(facts.snapshot.pods), *stores(facts.snapshot.pods)]
    collect = partial(_pod_files, backend, facts)
    for start in range(0, len(pods), AT_ONCE):  # in batches, which bounds the memory
        for files_ in map_in_threads(collect, pods[start : start + AT_ONCE]):
            yield from files_


def _pod_files(backend: Backend, facts: Facts, pod: Object) -> list[File]:
    name = pod["metadata"]["name"]
    try:
        lines = list(backend.logs(pod, tail=LOG_LINES, timestamps=True))
    except DdpError as error:
        lines = [f"(no lines: {error.message})"]
    shown = "\n".join(map(escape_log_line, redact_text("\n".join(lines)).splitlines()))
    found = [File(f"logs/{name}.log", shown[-LOG_BYTES:] + "\n")]
    if name in facts.samples:
        with contextlib.suppress(DdpError):  # the pod may have ended meanwhile
            found.append(File(f"metrics/{name}.prom", redact_text(backend.metrics(pod))))
    return found
