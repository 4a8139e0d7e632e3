"""Time of a rendezvous of many agents: to form a group, and to re-form it after the loss of one node and of 10 %.

A real store, as its own process, and simulated agents in another: each has a separate connection, authenticates, and
answers as an agent does, but starts no workers. Times are from the last Join, or from the loss, to the last Start;
the simulated agents' own work is in them. The bars are those for 4,096 agents of 8 ranks each, on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.drivers.simulated_agents import AgentPool
from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.constants import Env
from ddp_trainer.launch.protocol.messages import Policy
from ddp_trainer.net.run_secret import read_run_secret

SUMMARY = "time, bytes, memory and processor time of a rendezvous of 16 to 4,096 agents"

AGENTS: Final = (16, 64, 256, 1024, 4096)
QUICK_AGENTS: Final = (16, 256)
BAR_AGENTS: Final = 4096
BAR_SECONDS: Final = 2.0
BAR_AGENT_BYTES: Final = 4096
BAR_STORE_BYTES: Final = 128 << 20
BAR_HANDSHAKE_SECONDS: Final = 0.002
GIVEN_UP: Final = 120.0
HANDSHAKES: Final = 50


@dataclass(slots=True)
class StoreProcess:
    """A store under measurement."""

    process: subprocess.Popen[str]
    port: int
    secret_file: Path

    def processor_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """Largest resident set so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(match[1]) << 10 if match else 0


def measure(options: Options) -> Report:
    """Form, lose one, lose 10 %, for growing numbers of agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < BAR_AGENTS + 256:
        raise CannotMeasure(f"This machine allows {hard} open files; {BAR_AGENTS + 256} are needed.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, BAR_AGENTS + 256), hard))
    report = Report()
    formed: dict[int, float] = {}
    with store() as under_test:
        handshake = report.figure("handshake_seconds", asyncio.run(time_each_handshake(under_test)))
        report.at_most("median seconds of a handshake on loopback", handshake.median, BAR_HANDSHAKE_SECONDS)
    for count in QUICK_AGENTS if options.quick else AGENTS:
        with store() as under_test:
            formed[count] = asyncio.run(asyncio.wait_for(run(report, under_test, count, options), GIVEN_UP))
    if not options.quick:
        growth = formed[4096] / formed[256]
        report.figure("form_4096_to_256_ratio", growth)
        report.at_most("growth of the time from 256 to 4,096 agents, over that of their number", growth / 16, 1.0)
    return report


async def time_each_handshake(under_test: StoreProcess) -> list[float]:
    """Seconds from the knock to the challenge, of agents that connect one after the other."""
    crowd = AgentPool(read_run_secret(str(under_test.secret_file)), Policy(min_nodes=99, max_nodes=99, max_restarts=0))
    for index in range(HANDSHAKES):
        await crowd.connect(under_test.port, 1, first=index)
    return crowd.handshake_seconds


async def run(report: Report, under_test: StoreProcess, count: int, options: Options) -> float:
    """Measure with so many agents; return the time to form a group."""
    policy = Policy(min_nodes=max(1, count // 2), max_nodes=count, max_restarts=10)
    crowd = AgentPool(read_run_secret(str(under_test.secret_file)), policy)
    pinging = asyncio.get_running_loop().create_task(crowd.ping())
    begun = under_test.processor_seconds()
    await crowd.connect(under_test.port, count)
    await crowd.group(count, join=True)
    form = time.perf_counter() - crowd.joined_at
    received = [max(agent.received for agent in crowd.agents)]
    reform: dict[str, float] = {}
    for what, lost in (("one", 1), ("tenth", max(1, count // 10))):
        left = len(crowd.agents) - lost
        at = crowd.drop_agents(lost)
        await crowd.group(left, join=False)
        reform[what] = time.perf_counter() - at
        received.append(max(agent.received for agent in crowd.agents))
    pinging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pinging
    seconds = under_test.processor_seconds() - begun
    report.figure(f"form_{count}_seconds", form)
    report.figure(f"reform_{count}_after_one_seconds", reform["one"])
    report.figure(f"reform_{count}_after_tenth_seconds", reform["tenth"])
    report.figure(f"received_{count}_bytes", float(max(received)))
    report.figure(f"store_{count}_bytes", float(under_test.peak_bytes()))
    report.figure(f"store_{count}_processor_seconds", seconds)
    options.progress(
        f"{count} agents: formed in {form:.3f} s, again in {reform['one']:.3f} s and {reform['tenth']:.3f} s, "
        f"{max(received)} bytes an agent, {under_test.peak_bytes() >> 20} MiB, {seconds:.2f} s of processor"
    )
    if count == BAR_AGENTS:
        report.at_most("seconds to form after the last join", form, BAR_SECONDS)
        report.at_most("seconds to re-form after a loss", max(reform.values()), BAR_SECONDS)
        report.at_most("bytes received by an agent for one change", float(max(received)), BAR_AGENT_BYTES)
        report.at_most("bytes of memory of the store", float(under_test.peak_bytes()), BAR_STORE_BYTES)
    return form


@contextlib.contextmanager
def store() -> Iterator[StoreProcess]:
    """A store on a port of the kernel's choice."""
    with tempfile.TemporaryDirectory() as directory:
        secret_file = Path(directory) / "run-secret"
        secret_file.touch(0o600)
        secret_file.write_text(f"{secrets.token_hex(32)}\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "ddp_trainer", "store", "--host", "127.0.0.1", "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, Env.SECRET_FILE: str(secret_file)},
        )
        try:
            assert process.stderr
            line = process.stderr.readline()
            match = re.search(r"listening on .*:(\d+)$", line)
            if not match:
                raise CannotMeasure(f"The store did not start: {line.strip()}")
            yield StoreProcess(process, int(match[1]), secret_file)
        finally:
            process.kill()
            process.wait()
            if process.stderr:
                process.stderr.close()
