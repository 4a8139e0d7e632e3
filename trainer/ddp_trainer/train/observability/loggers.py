"""Curves of a run in files: CSV for anything that reads tables, events for TensorBoard. Written by rank 0 alone.

A run that goes on appends to what it finds. Steps that were lost with a crash or a rollback are taken out first, so
each step stands there once, as it stands in the weights.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from ddp_trainer.train.config.output_options import Keeping
    from ddp_trainer.train.config.worker_env import Environment

_COLUMNS: Final = ("step", "epoch", "name", "value")


class Report(Protocol):
    """Somewhere that curves are written to."""

    def begin(self, step: int) -> None:
        """Training goes on after so many steps: forget what stands there of later ones.

        Raises:
            BadConfig: it cannot be written to.
        """

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Values after so many steps, in an epoch counted from 0."""

    def close(self) -> None:
        """Leave everything where others can read it."""


class CsvReport:
    """Rows of step, epoch, name and value: new names need no new columns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: TextIO | None = None

    def begin(self, step: int) -> None:
        """Keep the rows up to this step."""
        try:
            self.close()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            kept = surviving_bytes(self._file, step)
            self._stream = self._file.open("a", newline="", encoding="utf-8")
            self._stream.truncate(kept)
        except OSError as err:
            raise BadConfig(
                f"--csv is {self._file}, which cannot be written: {err.strerror}.", hint="Give another file."
            ) from None
        if not kept:
            self._rows([_COLUMNS])

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """A row for each value."""
        self._rows((step, epoch, name, repr(value)) for name, value in values.items())

    def close(self) -> None:
        """Flush."""
        if self._stream is not None:
            self._stream.close()

    def _rows(self, rows: Iterable[Sequence[object]]) -> None:
        if self._stream is not None:
            csv.writer(self._stream).writerows(rows)


class TensorBoardReport:
    """Scalars for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._events: SummaryWriter | None = None

    def begin(self, step: int) -> None:
        """TensorBoard hides what was written of later steps before."""
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional, and slow to import
        except ImportError:
            raise BadConfig(
                "--tensorboard needs the package tensorboard, which is not installed.",
                hint="Install kubectl-ddp[tensorboard].",
            ) from None
        try:
            self.close()
            self._events = SummaryWriter(str(self._directory), purge_step=step + 1)
        except OSError as err:
            raise BadConfig(
                f"--tensorboard is {self._directory}, which cannot be written: {err.strerror}.",
                hint="Give another directory.",
            ) from None

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:  # noqa: ARG002 - it counts steps only
        """A point on each curve."""
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        if self._events is not None:
            self._events.close()


class Reports:
    """All that were asked for; a disk that fails ends the reports and not the training."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = list(reports)

    def begin(self, step: int) -> None:
        """See :meth:`Report.begin`."""
        for report in self._reports:
            report.begin(step)

    def rewind(self, step: int) -> None:
        """Go back to so many steps in the midst of training, where a disk that fails is no reason to end it."""
        for report in list(self._reports):
            try:
                report.begin(step)
            except BadConfig:
                self._reports.remove(report)

    def step(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """A step was committed."""
        self._write(step, epoch, "train", values)

    def evaluated(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """The test samples were evaluated."""
        self._write(step, epoch, "test", values)

    def _write(self, step: int, epoch: int, stage: str, values: Mapping[str, float]) -> None:
        for report in list(self._reports):
            try:
                report.write(step, epoch, {f"{stage}/{name}": value for name, value in values.items()})
            except OSError:
                self._reports.remove(report)

    def close(self) -> None:
        """Leave everything where others can read it."""
        for report in self._reports:
            report.close()


def open_reports(config: Keeping, env: Environment) -> Reports:
    """What the flags ask for; nothing on any rank but the first."""
    if env.rank != 0:
        return Reports([])
    csv_report: list[Report] = [] if config.csv is None else [CsvReport(config.csv)]
    events: list[Report] = [] if config.tensorboard is None else [TensorBoardReport(config.tensorboard)]
    return Reports([*csv_report, *events])


def surviving_bytes(file: Path, step: int) -> int:
    """Length of the part of a CSV report whose rows are whole and not of later steps; 0 where there is none."""
    kept = 0
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream):
                first = line.split(b",", 1)[0]
                if not line.endswith(b"\n") or (number and not (first.isdigit() and int(first) <= step)):
                    break
                kept += len(line)
    except FileNotFoundError:
        return 0
    return kept
