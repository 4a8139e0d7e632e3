"""Stacks of ranks, read by exec in their pods because the metrics port does not show them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kubectl_ddp.backends.base import Backend, Entry
from kubectl_ddp.errors import DdpError
from kubectl_ddp.hang.analysis import HangAnalysis, HangState, analyze
from kubectl_ddp.hang.collector import HangSnapshot, PodReport, read
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.render.pod import command_prefix
from kubectl_ddp.util.concurrency import map_in_threads

MOST_PODS: Final = 4
"""Maximum number of pods to read from; hangs rarely involve more, and each pod needs an exec."""
SECONDS: Final = 20.0
LOCAL: Final = "local"
_MISSING: Final = "Stacks and the launcher's messages are not shown"
_WORDS: Final = ("-P", "-m", "ddp_trainer", "hang")
_RUN: Final = """\
own=$(tr '\\0' '\\n' </proc/1/cmdline 2>/dev/null | head -n 1)
case "$own" in *python*) ;; *) own=python3 ;; esac
exec "$own" "$@"
"""
"""Runs the launcher's own interpreter, so that the same modules can be imported."""


def with_stacks(
    backend: Backend, snapshot: Snapshot, hang_snapshot: HangSnapshot, analysis: HangAnalysis
) -> tuple[HangSnapshot, HangAnalysis, str]:
    """Add stacks to the ranks named by a verdict, or to the stalled ranks if it names none.

    Returns:
        The snapshot with the stacks that were read, its verdict, and a message about stacks that could not be read.
    """
    names = _pods(hang_snapshot, analysis)[:MOST_PODS]
    pods = [pod for pod in snapshot.pods if pod["metadata"]["name"] in names]
    command = command_prefix(snapshot.job, "hang") or ("sh", "-c", _RUN, "hang", *_WORDS)
    found = map_in_threads(lambda pod: _read(backend, pod, command), pods)
    fuller = {shown.pod: shown for shown in found if isinstance(shown, PodReport)}
    missing = next((shown for shown in found if isinstance(shown, str)), "")
    complete = replace(
        hang_snapshot, pods=tuple(_merge_pod_reports(pod, fuller.get(pod.pod)) for pod in hang_snapshot.pods)
    )
    again = analyze(complete)  # the messages now name lines of code
    return (
        complete,
        again if again is not None and _analysis_key(again) == _analysis_key(analysis) else analysis,
        missing,
    )


def _pods(hang_snapshot: HangSnapshot, analysis: HangAnalysis) -> list[str]:
    """Return the pods of the verdict's ranks; without such ranks, one pod whose launcher has reported a hang."""
    wanted = {culprit.status.rank for culprit in analysis.culprits} or set(analysis.still)
    if analysis.answer in {HangState.MOVES, HangState.UNSEEN} or not wanted:
        return [pod.pod for pod in hang_snapshot.pods if pod.named][:1]
    return list(dict.fromkeys(rank.pod for rank in hang_snapshot.ranks if rank.status.rank in wanted))


def _merge_pod_reports(outline: PodReport, shown: PodReport | None) -> PodReport:
    """Return the later report; if the pod has moved on to other ranks, return the earlier one with the new messages."""
    if shown is None:
        return outline
    is_same = (shown.generation, _ranks(shown)) == (outline.generation, _ranks(outline))
    return shown if is_same else replace(outline, named=shown.named)


def _ranks(shown: PodReport) -> set[int]:
    return {rank.status.rank for rank in shown.ranks}


def _analysis_key(analysis: HangAnalysis) -> tuple[HangState, Sequence[int]]:
    return analysis.answer, [culprit.status.rank for culprit in analysis.culprits]


def _read(backend: Backend, pod: Object, command: Sequence[str]) -> PodReport | str:
    """Return a pod's report with stacks, or an error message."""
    name = str(pod["metadata"]["name"])
    try:
        done = _run(backend, pod, command)
    except DdpError as error:
        return f"{_MISSING}: pod {name}: {error}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_MISSING}: pod {name}: {error}."
    if done.returncode and "pods/exec" in done.stderr and "forbidden" in done.stderr:
        return f"{_MISSING}: they need the right to create pods/exec, which ClusterRole ddp-debug grants."
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"{_MISSING}: pod {name}: {lines[0].removeprefix('hang: ')}"
    return read(name, done.stdout)


def _run(backend: Backend, pod: Object, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # A local pod runs in the environment of the submission, usually this same interpreter.
    here = os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable
    words = (here, *_WORDS) if backend.where == LOCAL else tuple(command)
    handover = backend.enter(pod, Entry(words=words, variables={}))
    return subprocess.run(
        handover.words,
        env=handover.environ,
        cwd=handover.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )
