"""Seconds from the beginning of a failure on a real cluster until ``why`` names its cause first.

The failures are those of ``tests/cluster``: each is a job that fails in its own way, a few at a time. ``why`` runs
repeatedly from the beginning on. A failure of a script begins where the script prints that it does; another one
when the job is submitted, or when the pod is deleted, evicted or killed.

It needs a KUBECONFIG, the variable ``DDP_TEST_IMAGE`` with a trainer image that the nodes can start, and rights over
namespaces and nodes.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.drivers.cluster_runs import image
from bench.harness import CannotMeasure, Options, Report
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.timestamps import epoch
from tests.cluster.live_cluster import namespace
from tests.cluster.staged_failures import STAGES
from tests.cluster.staged_incidents import BEGINS, INCIDENTS
from tests.cluster.staging import Json, Stage, Staging

SUMMARY = "seconds until 'why' names the cause of a failure on a real cluster first, case by case"

PARTS: Final = (
    *("host-oom", "one-rank-raises", "import", "segfault", "segfault-again", "gpus", "no-queue", "no-claim", "secret"),
    *("selector", "quota", "image", "plain-hang", "early-exit", "pod-deleted", "pod-evicted", "node-drained"),
    *("store-killed", "disk-full"),
)
"""Names of stages."""
ALL: Final = {**STAGES, **INCIDENTS}
LIMIT_SECONDS: Final = 40.0
GIVEN_UP_SECONDS: Final = 90.0
AT_ONCE: Final = 3
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
    try:
        api = Api(connect())
        api.get("/version")
    except DdpError as error:
        raise CannotMeasure(f"there is no cluster: {error}") from error
    wanted = options.parts(PARTS)
    answers: dict[str, Diagnosis] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ddp-bench-") as home,
        namespace(api, image(), Path(home)) as space,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        staging = Staging(space)
        try:
            staging.prepare()
            made = {name: staging.objects(name, ALL[name]) for name in wanted if staging.can(ALL[name])}
            if missing := [name for name in wanted if name not in made]:
                raise CannotMeasure(f"This cluster lacks the engine or the queues of {', '.join(missing)}.")
            for name, answer in pool.map(lambda name: (name, _diagnose(staging, name, made[name])), made):
                answers[name] = answer
                took = "never" if answer.seconds is None else f"{answer.seconds:5.1f} s"
                options.progress(f"{name:<16} {took:>8}  {answer.last}")
        finally:
            staging.clean()
    return _report(answers)


def _report(answers: dict[str, Diagnosis]) -> Report:
    report = Report()
    for name, answer in answers.items():
        seconds = answer.seconds if answer.seconds is not None else float("nan")
        report.figure(f"{name.replace('-', '_')}_seconds", seconds)
        report.at_most(f"seconds until the cause is named, {name}", seconds, LIMIT_SECONDS)
    return report


def _diagnose(staging: Staging, name: str, objects: list[Json]) -> Diagnosis:
    stage = ALL[name]
    starting = threading.Thread(target=staging.start, args=(name, stage, objects), daemon=True)
    starting.start()
    begun: float | None = None
    last = ""
    while True:
        begun = begun or _failure_time(staging, name, stage, is_staged=not starting.is_alive())
        if begun is not None:
            last, is_right = _run_why(staging, name, stage)
            if is_right or time.time() > begun + GIVEN_UP_SECONDS:
                return Diagnosis(time.time() - begun if is_right else None, last)
        time.sleep(AGAIN_SECONDS)


def _failure_time(staging: Staging, name: str, stage: Stage, *, is_staged: bool) -> float | None:
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


def _run_why(staging: Staging, name: str, stage: Stage) -> tuple[str, bool]:
    """The first finding in words, and whether it is the right one."""
    done = staging.space.ddp("why", name, "-o", "json")
    told: dict[str, Any] = json.loads(done.out) if done.out else {}
    first = next(iter(told.get("findings") or ()), {})
    is_right = first.get("subject") == stage.cause and stage.says in json.dumps(first, ensure_ascii=False)
    return f"{first.get('subject')}: {first.get('message', done.err.strip())}", is_right
