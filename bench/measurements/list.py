"""Time of the command line on a cluster with ten thousand pods, against kubectl.

The API server is the real one. Nodes and the life of pods on them are simulated by kwok; jobs and pods are what submit
and the operator would make, with every field. Some pods answer with the metrics of eight ranks each, through the API
server's proxy. Every call is a separate process, in turns with a Python that does nothing and with kubectl. The
client time of a list is the processor time of its process. The wall time also shows the speed of the API server.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.drivers.calls import Call
from bench.drivers.pod_metrics import RANKS, pod_metrics
from bench.drivers.simulated_jobs import cluster, simulated_jobs, simulated_nodes
from bench.harness import CannotMeasure, Options, Report, Spread, interleaved, paired_ratio
from bench.measurements.cli import check_wall_time
from ddp_trainer.common.constants import Label

SUMMARY = "how long list and status take over 10,000 pods on a real API server, and in what memory"

PODS_OF_EACH: Final = 20
LISTS: Final = {"list-1000": 1_000, "list-10000": 10_000}
"""Part → pods."""
RELATIVE_BAR: Final = 2.0
"""Processor time of list relative to kubectl's of the same pods, where they are few."""
LIST_BAR_SECONDS: Final = 2.5
"""Processor time of the longest list."""
PARTS: Final = ("first", "status", *LISTS)
MEMORY_BAR_BYTES: Final = 256 << 20
IMPORT_SECONDS: Final = 0.3
"""Time to import the Kubernetes client, which every command on a cluster takes."""
STATUS_BAR_SECONDS: Final = 0.5 + IMPORT_SECONDS
FIRST_ANSWER_BAR_SECONDS: Final = 0.25 + IMPORT_SECONDS
STATUS_PODS: Final = 125


Times = Mapping[str, Sequence[float]]
"""Arm of a comparison → seconds, per run."""


@dataclass(frozen=True, kw_only=True)
class ListBench:
    """Settings and report that all parts share."""

    kubectl: str
    """Path of kubectl."""
    rounds: int
    options: Options
    report: Report

    def time_interleaved(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> tuple[Times, Times]:
        """Wall times and processor times of the calls, in turns, and as ``bare`` of a Python that does nothing."""
        arms = {**calls, "bare": Call([sys.executable, "-c", "pass"])}
        for call in arms.values():  # byte code is written, and what is read from the disk is in memory
            call()
            call.clear()
        seconds = interleaved(arms, rounds=rounds or self.rounds, options=self.options)
        return seconds, {name: call.computed for name, call in arms.items()}


def measure(options: Options) -> Report:
    """List and status, each beside kubectl, in crowds that grow."""
    parts = [part for part in options.parts(PARTS) if part != "list-10000" or not options.quick]
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CannotMeasure("kubectl is what this is compared with, and it is not there.")
    bench = ListBench(kubectl=kubectl, rounds=5 if options.quick else 15, options=options, report=Report())
    api = cluster()
    if "first" in parts:
        _measure_first_response(bench)
        parts.remove("first")
    if parts:
        with simulated_nodes(api, options) as nodes, pod_metrics(api, pods=STATUS_PODS) as metrics:
            people = partial(simulated_jobs, api, options, metrics, nodes)
            if "status" in parts:
                with people(jobs=1, pods_of_each=STATUS_PODS, telling=STATUS_PODS) as one:
                    _status(bench, one.namespace)
            for pods in [LISTS[part] for part in parts if part in LISTS]:
                with people(jobs=pods // PODS_OF_EACH, pods_of_each=PODS_OF_EACH) as many:
                    _list(bench, many.namespace, pods)
    return bench.report


def _plugin_command(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("kubectl-ddp")), *words]


def _measure_first_response(bench: ListBench) -> None:
    own = Call(_plugin_command("list", "-n", "default", "-o", "json"), lambda output: "items" in json.loads(output))
    peer = Call([bench.kubectl, "get", "pods", "-n", "default", "-o", "name"])
    seconds, computed = bench.time_interleaved({"ours": own, "kubectl": peer})
    _record_call(bench.report.figure, "first_answer", seconds["ours"], own)
    _record_call(bench.report.baseline, "kubectl_first_answer", seconds["kubectl"], peer)
    bench.report.baseline("bare_python_seconds", seconds["bare"])
    bench.report.baseline("bare_python_client_seconds", computed["bare"])
    check_wall_time(
        bench.report, "the first answer of list on a quiet cluster", "ours", seconds, FIRST_ANSWER_BAR_SECONDS
    )


def _status(bench: ListBench, space: str) -> None:
    ranks = RANKS * STATUS_PODS
    words = ("status", "job-0000", "-n", space, "-o", "json")
    own = Call(_plugin_command(*words), lambda output: len(json.loads(output)["ranks"]) == ranks)
    peer = Call([bench.kubectl, "get", "pods", "-n", space], lambda output: output.count(b"Running") == STATUS_PODS)
    seconds, computed = bench.time_interleaved({"ours": own, "kubectl": peer})
    _record_call(bench.report.figure, f"status_{ranks}_ranks", seconds["ours"], own)
    _record_call(bench.report.baseline, f"kubectl_get_{STATUS_PODS}_pods", seconds["kubectl"], peer)
    bench.report.baseline("bare_python_beside_status_client_seconds", computed["bare"])
    check_wall_time(bench.report, f"status of a job of {ranks} ranks", "ours", seconds, STATUS_BAR_SECONDS)


def _list(bench: ListBench, space: str, pods: int) -> None:
    """Time `list` beside kubectl's table, which the API server makes; with few pods also beside kubectl's JSON.

    `list` reads JSON too. kubectl's JSON of ten thousand pods is left out: it takes the memory of a small machine.
    """
    is_small = pods == min(LISTS.values())
    ready = f"{PODS_OF_EACH}/{PODS_OF_EACH}".encode()
    get = [bench.kubectl, "get", "pods", "-n", space, "-l", Label.JOB]
    own = Call(_plugin_command("list", "-n", space), lambda output: output.count(ready) == pods // PODS_OF_EACH)
    peers = {"kubectl_get": Call(get, lambda output: output.count(b"Running") == pods)}
    if is_small:
        peers["kubectl_get_json"] = Call([*get, "-o", "json"], lambda output: output.count(b'"uid"') >= pods)
    seconds, computed = bench.time_interleaved(
        {"ours": own, **peers}, rounds=None if is_small else max(3, bench.rounds // 5)
    )
    _record_call(bench.report.figure, f"list_{pods}_pods", seconds["ours"], own)
    for name, call in peers.items():
        _record_call(bench.report.baseline, f"{name}_{pods}_pods", seconds[name], call)
    bench.report.baseline(f"bare_python_beside_{pods}_pods_client_seconds", computed["bare"])
    if is_small:
        relative = statistics.median(paired_ratio(computed["ours"], computed["kubectl_get"]))
        what = f"processor time of list over {pods} pods, relative to kubectl get pods"
        bench.report.at_most(what, relative, RELATIVE_BAR)
    else:
        check_wall_time(bench.report, f"client time of list over {pods} pods", "ours", computed, LIST_BAR_SECONDS)
    most = max(own.memory)
    bench.report.at_most(f"bytes of memory that list takes over {pods} pods", most, MEMORY_BAR_BYTES)


def _record_call(
    add: Callable[[str, Sequence[float]], Spread], name: str, seconds: Sequence[float], call: Call
) -> None:
    """Wall time, processor time and memory of a call."""
    add(f"{name}_seconds", seconds)
    add(f"{name}_client_seconds", call.computed)
    add(f"{name}_memory_bytes", call.memory)
