"""Resource usage of a job's processes, sampled while it runs, and its growth."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, mode
from typing import Final

from bench.harness import CannotMeasure, Report

GROWTH_ALLOWED: Final = 1.05
"""Allowed growth of a median over a tenth of all samples. Processes that start and end change it by a few percent."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resource usage of one process, or of several."""

    memory: int = 0
    """Bytes of resident memory; pages that processes share are counted in each of them."""
    threads: int = 0
    descriptors: int = 0

    def __add__(self, other: ResourceUsage) -> ResourceUsage:
        return ResourceUsage(
            self.memory + other.memory, self.threads + other.threads, self.descriptors + other.descriptors
        )


def process_usage(pid: int) -> ResourceUsage:
    """Return the usage of one process. Raises OSError if it has ended."""
    process = Path(f"/proc/{pid}")
    return ResourceUsage(
        memory=int((process / "statm").read_text().split()[1]) * _PAGE,
        threads=len(list((process / "task").iterdir())),
        descriptors=len(list((process / "fd").iterdir())),
    )


@dataclass(slots=True)
class UsageSampler:
    """Samples of all processes whose environment has ``variable``, such as ``NAME=value``."""

    variable: str
    samples: list[dict[int, ResourceUsage]] = field(default_factory=list)
    """Process id → what it held, a mapping for each sample."""

    def sample(self) -> None:
        """Take one of every process."""
        found: dict[int, ResourceUsage] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if self.variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = process_usage(int(entry.name))
                except OSError:
                    continue  # it ended meanwhile, or is not ours
        self.samples.append(found)

    def report_growth(self, report: Report) -> None:
        """The last tenth beside the first: of the whole job, and of the processes that lived through all samples.

        Only samples count that have as many processes as most samples: while a process is restarted, a job holds less.

        Raises:
            CannotMeasure: fewer than ten such samples, or no process lived through all of them.
        """
        usual = mode(map(len, self.samples)) if self.samples else 0
        samples = [sample for sample in self.samples if len(sample) == usual]
        tenth = len(samples) // 10
        lasting = set.intersection(*map(set, self.samples)) if self.samples else set()
        if not tenth or not lasting:
            raise CannotMeasure(f"{len(samples)} samples of {len(lasting)} lasting processes tell of no growth.")
        for who, wanted in (("job", None), ("lasting_processes", lasting)):
            early = [_sum(sample, wanted) for sample in samples[:tenth]]
            late = [_sum(sample, wanted) for sample in samples[-tenth:]]
            for what, unit in (("memory", "bytes"), ("threads", "count"), ("descriptors", "count")):
                first = median(getattr(sample, what) for sample in early)
                last = median(getattr(sample, what) for sample in late)
                report.figure(f"{who}_{what}_at_first_{unit}", first)
                report.figure(f"{who}_{what}_at_last_{unit}", last)
                report.at_most(f"growth of {what}, {who.replace('_', ' ')}", last / first, GROWTH_ALLOWED)


def _sum(sample: dict[int, ResourceUsage], wanted: set[int] | None) -> ResourceUsage:
    chosen = [usage for pid, usage in sample.items() if wanted is None or pid in wanted]
    return sum(chosen, ResourceUsage())
