"""How long the command line takes over a cluster with ten thousand pods, against kubectl.

The API server is the real one. Nodes and the life of pods on them are simulated by kwok; jobs and pods are what submit
and the operator would make, with every field. Some pods answer with the metrics of eight ranks each, through the API
server's proxy. Every call is a process of its own, in turns with ``kubectl get pods``. A list's time of the client is
what its process computes: how fast the API server is, is shown by the wall time beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench._crowd import cluster, crowd, simulated_nodes
from bench._pod_metrics import RANKS, pod_metrics
from bench.harness import CannotMeasure, Options, Report, interleaved
from ddp_trainer.contract import Label

SUMMARY = "how long list and status take over 10,000 pods on a real API server, and in what memory"

PODS_OF_EACH: Final = 20
LIST_BARS: Final = {1_000: 0.25, 10_000: 2.5}
"""Pods → seconds of client time."""
MEMORY_BAR_BYTES: Final = 256 << 20
STATUS_BAR_SECONDS: Final = 0.5
FIRST_ANSWER_BAR_SECONDS: Final = 0.25
STATUS_PODS: Final = 125


@dataclass
class Call:
    """One command, and what its runs took."""

    command: list[str]
    check: Callable[[str], bool]
    """Whether what it printed is the answer."""
    computed: list[float] = field(default_factory=list)
    """Seconds of processors, per run."""
    memory: list[float] = field(default_factory=list)
    """Bytes at most, per run."""

    def __call__(self) -> float:
        """Run it once; returns the seconds it took."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            begun = time.perf_counter()
            process = subprocess.Popen(self.command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            said, complained = out.read().decode(), err.read().decode()
        if process.returncode != 0 or not self.check(said):
            raise CannotMeasure(
                f"{' '.join(self.command)} exited with {process.returncode}: {complained or said[:500]}"
            )
        self.computed.append(used.ru_utime + used.ru_stime)
        self.memory.append(used.ru_maxrss * 1024.0)
        return seconds


def measure(options: Options) -> Report:
    """List and status, each beside kubectl, in crowds that grow."""
    api = cluster()
    simulated_nodes(api)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CannotMeasure("kubectl is what this is compared with, and it is not there.")
    report = Report()
    rounds = 5 if options.quick else 15
    _first_answer(report, options, kubectl, rounds)
    with pod_metrics(api, pods=STATUS_PODS) as metrics:
        with crowd(api, options, metrics, jobs=1, pods_of_each=STATUS_PODS, telling=STATUS_PODS) as one:
            _status(report, options, kubectl, one.namespace, rounds)
        for pods, bar in LIST_BARS.items():
            if options.quick and pods > 1_000:
                continue
            with crowd(api, options, metrics, jobs=pods // PODS_OF_EACH, pods_of_each=PODS_OF_EACH) as many:
                _list(
                    report,
                    options,
                    kubectl,
                    many.namespace,
                    pods,
                    bar,
                    rounds if pods == 1_000 else max(3, rounds // 3),
                )
    return report


def _ours(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("kubectl-ddp")), *words]


def _first_answer(report: Report, options: Options, kubectl: str, rounds: int) -> None:
    ours = Call(_ours("list", "-n", "default", "-o", "json"), lambda said: "items" in json.loads(said))
    theirs = Call([kubectl, "get", "pods", "-n", "default", "-o", "name"], lambda _: True)
    bare = Call([sys.executable, "-c", "pass"], lambda _: True)
    times = interleaved({"ours": ours, "kubectl": theirs, "bare": bare}, rounds=rounds, options=options)
    first = report.figure("first_answer_seconds", times["ours"])
    report.figure("first_answer_client_seconds", ours.computed)
    report.baseline("kubectl_first_answer_seconds", times["kubectl"])
    report.baseline("bare_python_seconds", times["bare"])
    report.at_most(
        "median seconds to the first answer of list on a quiet cluster", first.median, FIRST_ANSWER_BAR_SECONDS
    )


def _status(report: Report, options: Options, kubectl: str, space: str, rounds: int) -> None:
    ranks = RANKS * STATUS_PODS
    words = ("status", "job-0000", "-n", space, "-o", "json")
    ours = Call(_ours(*words), lambda said: len(json.loads(said)["ranks"]) == ranks)
    theirs = Call([kubectl, "get", "pods", "-n", space], lambda said: said.count("Running") == STATUS_PODS)
    times = interleaved({"ours": ours, "kubectl": theirs}, rounds=rounds, options=options)
    status = report.figure(f"status_{ranks}_ranks_seconds", times["ours"])
    report.figure(f"status_{ranks}_ranks_client_seconds", ours.computed)
    report.baseline(f"kubectl_get_{STATUS_PODS}_pods_seconds", times["kubectl"])
    report.at_most(f"median seconds of status of a job of {ranks} ranks", status.median, STATUS_BAR_SECONDS)


def _list(report: Report, options: Options, kubectl: str, space: str, pods: int, bar: float, rounds: int) -> None:
    jobs = pods // PODS_OF_EACH
    ours = Call(_ours("list", "-n", space), lambda said: said.count(f"{PODS_OF_EACH}/{PODS_OF_EACH}") == jobs)
    theirs = Call([kubectl, "get", "pods", "-n", space, "-l", Label.JOB], lambda said: said.count("Running") == pods)
    times = interleaved({"ours": ours, "kubectl": theirs}, rounds=rounds, options=options)
    report.figure(f"list_{pods}_pods_seconds", times["ours"])
    computed = report.figure(f"list_{pods}_pods_client_seconds", ours.computed)
    memory = report.figure(f"list_{pods}_pods_memory_bytes", ours.memory)
    report.baseline(f"kubectl_get_{pods}_pods_seconds", times["kubectl"])
    report.baseline(f"kubectl_get_{pods}_pods_client_seconds", theirs.computed)
    report.baseline(f"kubectl_get_{pods}_pods_memory_bytes", theirs.memory)
    report.at_most(f"median seconds of client time of list over {pods} pods", computed.median, bar)
    report.at_most(f"bytes of memory that list takes over {pods} pods", memory.maximum, MEMORY_BAR_BYTES)
