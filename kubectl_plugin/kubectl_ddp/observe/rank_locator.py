"""Lookup of the pod and process of a rank, which change with every rendezvous, and the download of a profile from it.

A rank with metrics reports its own pod and process. For a rank without metrics, the launcher reports the pod but no
process. A profile is the trace of a few steps: ``ddp_trainer profile`` runs beside the rank, and its stdout is stored.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Profile
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.base import Backend, Entry, ExecCommand
from kubectl_ddp.errors import DdpError, NotFound, TimedOut
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe.scrape import scrape
from kubectl_ddp.status.describe import why_no_ranks
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.util.process import location_flags, program

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Pod, and optionally the process of a rank in it."""

    pod: Object
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    """Process id, inside the container."""

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for a command that runs beside the rank, with torchrun's names."""
        variables = {"RANK": self.rank, "LOCAL_RANK": self.local_rank, "RANK_PID": self.pid}
        return {name: str(value) for name, value in variables.items() if value is not None}

    def __str__(self) -> str:
        """Return the place as a sentence."""
        facts = {"local rank": self.local_rank, "process": self.pid}
        text = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        return f"Pod {self.name}." if self.rank is None else f"Rank {self.rank}: pod {self.name}, {text}."


def find_rank(backend: Backend, name: str, rank: int) -> Place:
    """Find the pod and the process of a rank. Raises NotFound."""
    snapshot = backend.job(name)
    samples = scrape(backend, snapshot)
    return place_of_rank(job_state(snapshot, samples), snapshot.pods, samples, rank)


def place_of_rank(state: JobState, pods: Sequence[Object], samples: Mapping[str, Samples], rank: int) -> Place:
    """Find the pod and the process of a rank in data that was already read. Raises NotFound."""
    by_name = {str(pod["metadata"]["name"]): pod for pod in pods}
    found = next((rank_state for rank_state in state.ranks if rank_state.rank == rank), None)
    launchers = dict(_find_by_launcher_metrics(state, samples, rank))
    if found is None:
        for pod, index in launchers.items():
            return Place(pod=by_name[pod], rank=rank, local_rank=index)
        raise NotFound(
            f"The pod of rank {rank} of job '{state.name}' is unknown: {_why(state)}", hint=_status_hint(state)
        )
    pid = samples[found.pod].value(Metric.RANK_PID, rank=str(rank))
    # A rank that has just started may have reported its process but not its local rank.
    local_rank = found.local_rank if found.local_rank is not None else launchers.get(found.pod)
    return Place(pod=by_name[found.pod], rank=rank, local_rank=local_rank, pid=int(pid) if pid is not None else None)


def _find_by_launcher_metrics(state: JobState, samples: Mapping[str, Samples], rank: int) -> Iterator[tuple[str, int]]:
    """Yield pod and local rank as reported by launchers. Pods outside the newest worker group are skipped, because they
    still report the previous group.
    """
    for pod, pod_samples in samples.items():
        first = pod_samples.value(Metric.FIRST_RANK)
        is_in_it = pod_samples.value(Metric.RENDEZVOUS_ROUND) == state.generation and (state.world_size or 0) > rank
        if first is not None and is_in_it and first <= rank < first + state.processes_per_node:
            yield pod, rank - int(first)


def find_pod(snapshot: Snapshot, pod: str) -> Place:
    """Find a pod of the job by its name, or by the part after the job's name, as in ``worker-1`` or ``store``.

    Raises:
        NotFound: If no pod matches, or if several names start with it.
    """
    names = [str(item["metadata"]["name"]) for item in snapshot.pods]
    job = snapshot.job["metadata"]["name"]
    pod_names = {pod, f"{job}-{pod}"}
    beginning = [name for name in names if any(name.startswith(f"{word}-") for word in pod_names)]
    for item, name in zip(snapshot.pods, names, strict=True):
        if name in pod_names or beginning == [name]:
            return Place(pod=item)
    hint = f"There are {', '.join(names)}." if names else "It has none just now."
    raise NotFound(f"Job '{job}' has no pod '{pod}'.", hint=hint)


def _why(state: JobState) -> str:
    ranks = ", ".join(str(rank_state.rank) for rank_state in state.ranks[:_SHOWN]) + ", ..." * (
        len(state.ranks) > _SHOWN
    )
    return f"the ranks with metrics are {ranks}." if state.ranks else why_no_ranks(state)


def _status_hint(state: JobState) -> str:
    return f"'{program()} status {state.name} --ranks{location_flags()}' shows all; --pod selects a pod by name."


_RUN: Final = """\
python=$1
shift
if [ -n "$RANK_PID" ]; then
  own=$(tr '\\0' '\\n' <"/proc/$RANK_PID/cmdline" 2>/dev/null | head -n 1)
  case "$own" in *python*) python=$own ;; esac
fi
exec "$python" -P -m ddp_trainer profile "$@"
"""
"""Shell command that runs the profiler with the rank's interpreter, which can import ``ddp_trainer``.

``$1`` is the interpreter to use if the process of the rank is unknown.
"""
_SPARE_SECONDS: Final = 30.0
"""Time allowed for the connection and the transfer, in seconds."""


def entry(
    local_rank: int,
    variables: Mapping[str, str],
    *,
    steps: int,
    seconds: float,
    python: str = "python3",
    command: Sequence[str] = (),
) -> Entry:
    """Return the command to run beside the rank.

    Args:
        local_rank: Local rank of the worker.
        variables: Environment variables of the command.
        steps: Steps to record.
        seconds: Time limit.
        python: Interpreter of the pod that can import ``ddp_trainer``.
        command: Words that start the profiler, in a pod where no interpreter can import it without them.
    """
    flags = ("--local-rank", str(local_rank), "--steps", str(steps), "--seconds", f"{seconds:g}")
    return Entry(words=(*(command or ("sh", "-c", _RUN, "profile", python)), *flags), variables=variables)


def fetch_trace(handover: ExecCommand, file: Path, seconds: float) -> int:
    """Write the trace to ``file`` and return its size in bytes. An incomplete file is removed.

    Raises:
        TimedOut: If the rank completed no step in time.
        DdpError: If the rank wrote no trace, or the file cannot be written.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            _run(handover, out.fileno(), seconds)
        _check(draft)
        draft.replace(file)
    except OSError as error:
        raise DdpError(f"'{file}' cannot be written: {error.strerror}.", hint="Name another --file.") from error
    finally:
        draft.unlink(missing_ok=True)
    return file.stat().st_size


def _run(handover: ExecCommand, out: int, seconds: float) -> None:
    try:
        process = subprocess.Popen(
            handover.words,
            env=handover.environ,
            cwd=handover.directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise NotFound(f"Program '{handover.words[0]}' was not found.") from None
    with process:
        try:
            stderr = process.communicate(timeout=seconds + _SPARE_SECONDS)[1]
        except BaseException as error:
            process.terminate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimedOut(f"The pod has not answered within {error.timeout:g} s.") from None
            raise
    if process.returncode:
        raise _reason(process.returncode, stderr)


def _reason(code: int, stderr: str) -> DdpError:
    """Return the error that the profiler reported, or the reason why it did not run."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("command terminated")]
    messages = [line.removeprefix("profile: ") for line in lines if line.startswith("profile: ")]
    sentence = messages[-1] if messages else f"The pod made no trace: {lines[-1] if lines else f'exit code {code}'}."
    if code == Profile.LATE:
        return TimedOut(sentence, hint="Give it a longer --timeout; a rank that hangs ends no step.")
    return DdpError(sentence, hint="Try again when they are done." if code == Profile.BUSY else "")


def _check(file: Path) -> None:
    """Verify the checksum of the trace. Raises DdpError if it is incomplete."""
    try:
        with gzip.open(file) as trace:
            while trace.read(1 << 20):
                pass
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DdpError("The trace was cut off on its way here.", hint="Try again, with fewer --steps.") from None
