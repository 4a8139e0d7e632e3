"""One run of a peer on two nodes of this machine: its processes, its trace, and the faults.

The processes of a run and of a node carry a variable in their environment, so that those of a launcher with its own
sessions or fork servers are found too. A node whose agent has died is started again after a second, as a kubelet would,
unless the node itself is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.peers.peer import LOOPS, ROOT, Command, Job, Peer
from bench.peers.torchrun_driver import free_port

POLL_SECONDS: Final = 0.02
STALL_SECONDS: Final = 2.0
"""A poll that comes later than this was not delayed by what runs here: the machine itself was suspended."""
RESTART_SECONDS: Final = 1.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


class MachineStalled(Exception):
    """The machine was suspended during a run, so its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step that one rank has committed."""

    step: int
    time: float
    rank: int
    world: int
    pid: int
    place: int


@dataclass(slots=True)
class FaultRun:
    """Processes and trace of one run."""

    peer: Peer
    job: Job
    environment: dict[str, str]
    lines: list[StepLine] = field(default_factory=list)
    identity: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    _died: dict[int, float] = field(default_factory=dict)
    _read: int = 0

    def start(self, name: str, command: Command, place: int | None = None) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a log."""
        marks = {"BENCH_RUN": self.identity, "BENCH_NODE": f"{self.identity}/{place}", "BENCH_PLACE": str(place or 0)}
        environment = {**os.environ, **self.environment, **command.environment, **marks}
        with (self.job.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command.arguments, stdout=log, stderr=log, env=environment, cwd=self.job.folder, start_new_session=True
            )
        self.started.append(process)
        return process

    def start_node(self, place: int) -> None:
        """Start or restart a node."""
        self.agents[place] = self.start(f"node-{place}", self.peer.node(self.job, place), place)
        self._died.pop(place, None)
        self.lost.discard(place)

    def poll(self) -> list[StepLine]:
        """Read the trace, restart dead agents that are due, and return all lines."""
        trace = self.job.folder / "steps.jsonl"
        if trace.exists():
            with trace.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._read += len(complete)
            self.lines += [StepLine(**json.loads(line)) for line in complete.splitlines()]
        for place, agent in self.agents.items():
            if self.peer.restarts and agent.poll() not in {None, 0} and place not in self.lost:
                died = self._died.setdefault(place, time.monotonic())
                if time.monotonic() - died >= RESTART_SECONDS:
                    self.kill_node(place)
                    self.start_node(place)
        return self.lines

    def wait(self, found: Callable[[list[StepLine]], float | None], timeout: float) -> float | None:
        """Return what ``found`` returns once it is not None, or None after ``timeout``."""
        polled = time.monotonic()
        deadline = polled + timeout
        while time.monotonic() < deadline:
            if (it := found(self.poll())) is not None:
                return it
            time.sleep(POLL_SECONDS)
            if time.monotonic() - polled > STALL_SECONDS:
                raise MachineStalled
            polled = time.monotonic()
        return None

    def processes(self, place: int | None = None) -> Iterator[int]:
        """Return the ids of the processes of the run, or of one node."""
        mark = f"BENCH_RUN={self.identity}" if place is None else f"BENCH_NODE={self.identity}/{place}"
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)

    def kill_node(self, place: int | None) -> float:
        """SIGKILL every process of a node, or of the whole run; return the time of the first signal."""
        begun = None
        while alive := [pid for pid in self.processes(place) if _is_alive(pid)]:
            begun = begun or time.time()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()
            time.sleep(POLL_SECONDS)
        return begun or time.time()

    def inject(self, fault: str, place: int = 1) -> float:
        """Let a fault befall a node; return the time of it."""
        worker = next((line.pid for line in reversed(self.lines) if line.place == place), None)
        begun = time.time()
        if fault == "agent_killed":  # the first process of its container, so the others die with it
            begun = self.kill_node(place)
        elif fault == "node_killed":
            self.lost.add(place)
            begun = self.kill_node(place)
        elif fault == "node_joins":
            self.start_node(place)
        elif worker is not None and fault == "rank_hung":
            (self.job.folder / f"hang.{worker}").touch()
        elif worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL if fault == "worker_killed" else signal.SIGSTOP)
        return begun

    def usage(self) -> dict[str, float]:
        """Return processor seconds and proportional resident bytes of all processes of the run."""
        seconds = memory = 0.0
        for pid in self.processes():
            with contextlib.suppress(OSError, StopIteration, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                memory += 1024 * int(next(line for line in rollup if line.startswith("Pss:")).split()[1])
                seconds += (int(stat[11]) + int(stat[12])) / TICKS
        return {"seconds": seconds, "memory": memory}


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def fault_run(
    peer: Peer, folder: Path, *, state_megabytes: int, nodes: int = 2, fast: bool = True, steps: int | None = None
) -> Iterator[FaultRun]:
    """Start services and nodes, and kill everything at the end."""
    folder.mkdir(parents=True)
    ports = tuple(free_port() for _ in range(3))
    job = Job(folder=folder, ports=ports, python=str(peer.python), loop=str(LOOPS / peer.loop), fast=fast)
    path = os.pathsep.join(filter(None, [str(LOOPS), str(ROOT / "trainer"), os.environ.get("PYTHONPATH")]))
    environment = {
        "PYTHONPATH": str(LOOPS) if peer.environment else path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "BENCH_FOLDER": str(folder),
        "BENCH_STATE_MB": str(state_megabytes),
        "BENCH_SAVE_STEPS": str(save_steps(state_megabytes)),
        **({"BENCH_STEPS": str(steps), "BENCH_PAUSE": "0"} if steps else {}),
    }
    run = FaultRun(peer, job, environment)
    try:
        for number, service in enumerate(peer.services(job)):
            run.start(f"service-{number}", service)
        for place in range(nodes):
            run.start_node(place)
            if place == 0:
                time.sleep(0.5)  # the first one is to have the store
        yield run
    finally:
        run.lost.update(run.agents)
        run.kill_node(None)
        for process in run.started:
            process.wait()


def save_steps(state_megabytes: int) -> int:
    """Return the steps from one checkpoint to the next."""
    return 10 if state_megabytes < 100 else 100


def recovery_times(
    before: list[StepLine], begun: float, world: int, *, is_join: bool
) -> Callable[[list[StepLine]], dict[str, Any]]:
    """Return a function from the lines so far to the seconds until any and until all ranks stepped after a fault.

    The step of the fault may still end, since the lost rank may have sent its part. So a step counts from the second
    one on, or if its process is new.
    """
    pids, newest = {line.pid for line in before}, max((line.step for line in before), default=0)

    def result(lines: list[StepLine]) -> dict[str, Any]:
        after = [line for line in lines if line.time > begun and (line.pid not in pids or line.step > newest + 1)]
        if is_join:
            after = [line for line in after if line.world == world]
        first_times: dict[int, float] = {}
        for line in after:
            if line.world == world:
                first_times.setdefault(line.rank, line.time)
        times = sorted(line.time for line in lines)
        done = max(first_times.values()) if len(first_times) == world else None
        span = [moment for moment in times if moment >= begun - 1 and (done is None or moment <= done)]
        return {
            "any_seconds": min(line.time for line in after) - begun if after else None,
            "all_seconds": done - begun if done else None,
            "pause_seconds": max((b - a for a, b in itertools.pairwise(span)), default=None) if done else None,
            "again_steps": max(0, newest - after[0].step + 1) if after else None,
        }

    return result


def net_steps(lines: list[StepLine], begun: float, ended: float) -> int:
    """Return the steps by which the newest committed step grew, less what was lost."""
    first = max((line.step for line in lines if line.time < begun), default=0)
    within = [line.step for line in lines if begun <= line.time < ended]
    return within[-1] - first if within else 0


def inject_at_intervals(run: FaultRun, seconds: float, every: float, seed: int) -> int:
    """Inject a random fault into a random node at even intervals; return their number."""
    random, begun, number = Random(seed), time.monotonic(), 0
    while (number + 1) * every <= seconds:
        kind = random.choice(("worker_killed", "agent_killed", "rank_stopped", "rank_hung"))
        run.inject(kind, random.randrange(2))
        number += 1
        run.wait(lambda _: None, max(0.0, begun + number * every - time.monotonic()))
    return number
