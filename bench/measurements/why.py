"""Seconds from the beginning of a failure until ``why`` names its cause first.

The failures are those of ``tests/cluster``: each is a job that fails in its own way, a few at a time. ``why`` runs
repeatedly from the beginning on. A failure of a script begins where the script prints that it does; another one
when the job is submitted, or when the pod is deleted, evicted or killed. A job that is only slow must never be called
a hang.

It needs a KUBECONFIG, the variable ``DDP_TEST_IMAGE`` with a trainer image that the nodes can start, and rights over
namespaces and nodes. Without a cluster, the stages of ``tests/cluster/staged_starts.py`` run as local jobs.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.drivers.cluster_runs import image
from bench.drivers.local_stages import LocalStaging
from bench.harness import CannotMeasure, Options, Report
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import epoch
from kubectl_ddp.why.model import Cause
from tests.cluster.live_cluster import namespace
from tests.cluster.staged_failures import STAGES
from tests.cluster.staged_incidents import BEGINS, INCIDENTS
from tests.cluster.staged_starts import STARTS
from tests.cluster.staging import Json, Stage, Staging

SUMMARY = "seconds until 'why' names the cause of a failure first, case by case, on a cluster or on this machine"

PARTS: Final = (
    *("host-oom", "one-rank-raises", "import", "segfault", "segfault-again", "gpus", "no-queue", "no-claim", "secret"),
    *("selector", "quota", "image", "plain-hang", "early-exit", "pod-deleted", "pod-evicted", "node-drained"),
    *("store-killed", "disk-full", "evicted", "store-refused"),
    *STARTS,
)
"""Names of stages."""
ALL: Final = {**STAGES, **INCIDENTS, **STARTS}
LIMIT_SECONDS: Final = 40.0
GIVEN_UP_SECONDS: Final = 90.0
AT_ONCE: Final = 3
AT_ONCE_HERE: Final = 1
AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of one failure."""

    seconds: float | None
    """Seconds until the cause was named first; None if it was not."""
    last: str
    """The last answer."""


def measure(options: Options) -> Report:
    """Stage every failure that is wanted and ask ``why`` until it names the cause."""
    wanted = options.parts(PARTS)
    answers: dict[str, Diagnosis] = {}
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as home, _staging(Path(home)) as (staging, at_once):
        made = {name: staging.objects(name, ALL[name]) for name in wanted if staging.can(ALL[name])}
        missing = [name for name in wanted if name not in made]
        if options.only and missing:
            raise CannotMeasure(f"This place lacks what these need: {', '.join(missing)}.")
        with ThreadPoolExecutor(at_once) as pool:
            for name, answer in pool.map(lambda name: (name, _diagnose(staging, name, made[name])), made):
                answers[name] = answer
                took = "never" if answer.seconds is None else f"{answer.seconds:5.1f} s"
                options.progress(f"{name:<21} {took:>8}  {answer.last}")
    if missing:
        options.progress(f"This place lacks what these need: {', '.join(missing)}.")
    return _report(answers)


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[tuple[Staging | LocalStaging, int]]:
    """Cluster that runs stages, or this machine without one, and the number of parallel stages."""
    try:
        api = Api(connect())
        api.get("/version")
    except DdpError:
        here = LocalStaging(home)
        try:
            yield here, AT_ONCE_HERE
        finally:
            here.clean()
        return
    with namespace(api, image(), home) as space:
        staging = Staging(space)
        try:
            staging.prepare()
            yield staging, AT_ONCE
        finally:
            staging.clean()


def _report(answers: dict[str, Diagnosis]) -> Report:
    report = Report()
    for name, answer in answers.items():
        seconds = answer.seconds if answer.seconds is not None else float("nan")
        report.figure(f"{name.replace('-', '_')}_seconds", seconds)
        if ALL[name].is_honest:
            report.at_most(f"slow starts that were called a hang, {name}", float(answer.seconds is None), 0.0)
        else:
            report.at_most(f"seconds until the cause is named, {name}", seconds, LIMIT_SECONDS)
    return report


def _diagnose(staging: Staging | LocalStaging, name: str, objects: list[Json]) -> Diagnosis:
    stage = ALL[name]
    starting = threading.Thread(target=staging.start, args=(name, stage, objects), daemon=True)
    starting.start()
    begun: float | None = None
    last = ""
    while True:
        if not starting.is_alive() and name not in staging.began:
            raise CannotMeasure(f"The job of {name} could not be submitted.")
        begun = begun or _failure_time(staging, name, stage, is_staged=not starting.is_alive())
        if begun is not None:
            last, is_right = _run_why(staging, name, stage)
            is_accused = stage.is_honest and last.startswith(Cause.HANG)
            if is_right or is_accused or time.time() > begun + GIVEN_UP_SECONDS:
                return Diagnosis(time.time() - begun if is_right else None, last)
        time.sleep(AGAIN_SECONDS)


def _failure_time(staging: Staging | LocalStaging, name: str, stage: Stage, *, is_staged: bool) -> float | None:
    """Return when the failure began; None before that."""
    if stage.fault is not None:
        return staging.began.get(name) if is_staged else None
    if not stage.script:
        return staging.began.get(name)
    if name not in staging.began:
        return None
    backend = staging.backend
    for pod in backend.job(name, events=False).pods:
        try:
            lines = list(backend.logs(pod, timestamps=True))
        except DdpError:
            continue
        if found := next((line for line in lines if BEGINS in line), None):
            return epoch(found.partition(" ")[0])
        statuses = pod["status"].get("containerStatuses") or ({},)
        ended = statuses[0].get("lastState", {}).get("terminated") or statuses[0].get("state", {}).get("terminated")
        if ended:
            return epoch(ended["startedAt"])
    return None


def _run_why(staging: Staging | LocalStaging, name: str, stage: Stage) -> tuple[str, bool]:
    """The first finding in words, and whether it is the right one."""
    done = staging.ddp("why", name, "-o", "json")
    diagnosis: dict[str, Any] = json.loads(done.out) if done.out else {}
    first = next(iter(diagnosis.get("findings") or ()), {})
    is_right = first.get("subject") == stage.cause and stage.says in json.dumps(first, ensure_ascii=False)
    return f"{first.get('subject')}: {first.get('message', done.err.strip())}", is_right
