"""Local jobs, driven as a person would: by the command line, in a state directory of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import CannotMeasure
from ddp_trainer.common.constants import Env, Label, Role
from ddp_trainer.common.metric_names import Metric, MetricLabel
from kubectl_ddp.backends.local.backend import LocalBackend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.status.metrics_parser import Samples, parse

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, as the metrics of its pod tell."""

    rank: int
    pod: str
    pid: int
    last_step_time: float
    """Unix time of its last committed step; 0 before the first."""
    step: int


@dataclass(slots=True)
class LocalJobs:
    """Jobs on this machine whose state lies in ``directory``."""

    directory: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.environment = os.environ | {"XDG_STATE_HOME": str(self.directory), "KUBECONFIG": os.devnull}

    def run(self, *words: str, check: bool = True) -> str:
        """``kubectl-ddp WORDS``; return its stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "kubectl_ddp", *words],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise CannotMeasure(f"kubectl-ddp {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def run_json(self, *words: str) -> dict[str, Any]:
        """Return the output of ``kubectl-ddp WORDS -o json``."""
        found: dict[str, Any] = json.loads(self.run(*words, "-o", "json"))
        return found

    def _backend(self) -> LocalBackend:
        return LocalBackend(root=self.directory / "kubectl-ddp" / "jobs")

    def pods(self, name: str, role: Role) -> list[dict[str, Any]]:
        """Pods of a job, from the engine's own records: Kubernetes-shaped JSON."""
        pods = self._backend().job(name).pods
        return [pod for pod in pods if pod["metadata"]["labels"].get(Label.ROLE) == role]

    def samples(self, name: str) -> dict[str, Samples]:
        """Return the metrics of every worker pod that answers."""
        backend = self._backend()
        samples: dict[str, Samples] = {}
        for pod in self.pods(name, Role.WORKER):
            try:
                samples[pod["metadata"]["name"]] = parse(backend.metrics(pod))
            except DdpError:
                continue
        return samples

    def ranks(self, name: str) -> dict[int, Rank]:
        """Every living rank."""
        found: dict[int, Rank] = {}
        for pod, samples in self.samples(name).items():
            for labels, up in samples.all(Metric.RANK_UP):
                number = labels[MetricLabel.RANK]
                if not up:
                    continue
                found[int(number)] = Rank(
                    rank=int(number),
                    pod=pod,
                    pid=int(samples.value(Metric.RANK_PID, rank=number) or 0),
                    last_step_time=samples.value(Metric.LAST_STEP_TIMESTAMP, rank=number) or 0.0,
                    step=int(samples.value(Metric.STEP, rank=number) or 0),
                )
        return found

    def container(self, pod: str) -> int:
        """Process id of a pod's container: the outermost process that carries the pod's name in its environment."""
        processes = {
            process
            for process in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
            if self._is_of(process, pod)
        }
        outermost = [process for process in processes if _parent(process) not in processes]
        if not outermost:
            raise CannotMeasure(f"No process of pod {pod} is there.")
        return min(outermost)

    def _is_of(self, process: int, pod: str) -> bool:
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return {f"{Env.POD_NAME}={pod}".encode(), f"XDG_STATE_HOME={self.directory}".encode()} <= set(variables)

    def wait(self, name: str, holds: Callable[[dict[int, Rank]], bool], *, timeout: float) -> dict[int, Rank] | None:
        """The ranks as soon as ``holds`` is true of them; None after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ranks = self.ranks(name)
            if holds(ranks):
                return ranks
            time.sleep(POLL_SECONDS)
        return None


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ranks_have_new_step(count: int, after: float) -> Callable[[dict[int, Rank]], bool]:
    """Return a test for ``count`` live ranks that have each committed a step after the Unix time ``after``."""
    return lambda ranks: len(ranks) == count and all(rank.last_step_time > after for rank in ranks.values())
