"""Real processes for the tests of metrics: ranks that a test controls, and an aggregator to scrape."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

DEADLINE_SECONDS = 120.0
"""Timeout for an expected event; never a measure of speed."""

RANK_PROGRAM = """
import sys
from ddp_trainer.metrics import attach

recorder = attach.rank_recorder()
rank = int(sys.argv[1])
recorder.identity(rank=rank, local_rank=rank, world_size=8, backend="gloo", device="cpu")

for number, line in enumerate(sys.stdin, start=1):
    order, _, value = line.strip().partition(" ")
    if order == "step":
        for step in range(int(value)):
            recorder.step(step + 1, 0, 16, *[0.125] * 8)
    elif order == "loss":
        recorder.progress(float(value), 0.1)
    print("done", flush=True)
"""


def rank_variables(directory: Path, rank: int = 0, *, local: int | None = None, of: int = 1) -> dict[str, str]:
    """Return the environment of a rank that records metrics, in a pod of ``of`` ranks."""
    values = {"RANK": rank, "LOCAL_RANK": rank if local is None else local, "LOCAL_WORLD_SIZE": of}
    return {name: str(value) for name, value in {**values, "DDP_METRICS_DIR": directory}.items()}


class Rank:
    """A rank that steps on command."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | rank_variables(directory, rank, of=4),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, order: str) -> None:
        """Give an order and wait until it is carried out."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)


class Scrape:
    """Samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample of this name with these labels among its own; None where there is none."""
        found = [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        """Every series in it."""
        return {(sample.name, frozenset(sample.labels.items())) for sample in self.samples}


def scraped(url: str, *, seconds: float = 2.0, agent: str = "test") -> Scrape:
    request = urllib.request.Request(url, headers={"User-Agent": agent})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return Scrape(answer.read().decode())


class Aggregator:
    """A running aggregator."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def scrape(self, *, seconds: float = 2.0) -> Scrape:
        """Scrape once; raise an error without an answer within ``seconds``."""
        return scraped(f"http://127.0.0.1:{self.port}/metrics", seconds=seconds)

    def scrape_until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """Scrape again and again until it shows what must come."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            seen = self.scrape()
            if holds(seen):
                return seen
            assert time.monotonic() < deadline, seen.text
            time.sleep(0.06)


def aggregate(directory: Path, *arguments: str) -> list[str]:
    """The command of an aggregator."""
    return [sys.executable, "-m", "ddp_trainer.metrics.aggregator", "--directory", str(directory), *arguments]


@contextlib.contextmanager
def started(command: list[str], environment: Mapping[str, str] = os.environ) -> Iterator[subprocess.Popen[str]]:
    """A process whose errors can be read, killed at the end, so that a test that fails does not wait for it."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def aggregator(directory: Path, *, job: str = "digits", port: int = 0) -> Iterator[Aggregator]:
    """An aggregator on a free port of this host, or on ``port``."""
    command = aggregate(directory, "--address", "127.0.0.1", "--port", str(port))
    with started(command, os.environ | {"DDP_JOB": job}) as process:
        yield Aggregator(process, announced_port(process))


def announced_port(process: subprocess.Popen[str]) -> int:
    """The port in the aggregator's first line; waits for it."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r":(\d+)/metrics$", line.strip())
    assert found, line
    return int(found[1])
