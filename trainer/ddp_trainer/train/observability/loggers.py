"""Curves of a run: CSV tables, TensorBoard events, Weights & Biases and MLflow. Only rank 0 writes them.

:func:`open_reports` opens the reports that the flags select. A resumed run appends to existing files. Steps that were
lost in a crash or rollback are removed first, so the files contain each step once, as the weights do. The services
keep the first values of such steps (:mod:`ddp_trainer.train.observability.remote_logger`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from ddp_trainer.train.observability.remote_logger import RemoteLogger, Service
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from ddp_trainer.train.config.config import Config
    from ddp_trainer.train.config.worker_env import Environment

_COLUMNS: Final = ("step", "epoch", "name", "value")


class CsvReport:
    """CSV report with the columns step, epoch, name and value. New names need no new columns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: TextIO | None = None

    def begin(self, step: int, run_id: str = "") -> None:  # noqa: ARG002 - the file is the run
        """Open the file and keep the rows up to this step.

        Raises:
            BadConfig: The file cannot be written.
        """
        try:
            self.close()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            size = valid_prefix_bytes(self._file, step)
            self._stream = self._file.open("a", newline="", encoding="utf-8")
            self._stream.truncate(size)
        except OSError as err:
            raise BadConfig(
                f"--csv is {self._file}, which cannot be written: {err.strerror}.", hint="Give another file."
            ) from None
        if not size:
            self._rows([_COLUMNS])

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Write a row for each value."""
        self._rows((step, epoch, name, repr(value)) for name, value in values.items())

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:  # noqa: ARG002 - files take what they get
        """Write out buffered values and close the report."""
        if self._stream is not None:
            self._stream.close()

    def _rows(self, rows: Iterable[Sequence[object]]) -> None:
        if self._stream is not None:
            csv.writer(self._stream).writerows(rows)


class TensorBoardReport:
    """TensorBoard report with one scalar per name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._events: SummaryWriter | None = None

    def begin(self, step: int, run_id: str = "") -> None:  # noqa: ARG002 - the directory is the run
        """Open the report. TensorBoard then hides values of later steps that were written before.

        Raises:
            BadConfig: The directory cannot be written, or TensorBoard is not installed.
        """
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

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:  # noqa: ARG002 - TensorBoard has no epochs
        """Add a point to each curve."""
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:  # noqa: ARG002 - files take what they get
        """Write out buffered values and close the report."""
        if self._events is not None:
            self._events.close()


class Reports(list[CsvReport | TensorBoardReport | RemoteLogger]):
    """All reports of a run. A report that cannot be written during training is dropped, and training continues."""

    def begin(self, step: int, run_id: str = "") -> None:
        """Open all reports for training after ``step`` committed steps, and remove values of later steps.

        Args:
            step: Number of committed steps.
            run_id: Id of the run in services, the same after each restart.

        Raises:
            BadConfig: A report cannot be written.
        """
        for report in self:
            report.begin(step, run_id)

    def rollback(self, step: int) -> None:
        """Remove values of steps after ``step`` during training, and drop reports that cannot be written."""
        for report in list(self):
            try:
                report.begin(step)
            except BadConfig:
                self.remove(report)

    def write(self, step: int, epoch: int, stage: str, values: Mapping[str, float]) -> None:
        """Write values after a committed step under ``train/``, ``test/`` or ``user/``.

        Args:
            step: Number of committed steps.
            epoch: Epoch of the step, from 0.
            stage: ``train``, ``test``, or ``user`` for those that the script has reported by ``attach.log()``.
            values: Name → value.
        """
        for report in list(self):
            try:
                report.write(step, epoch, {f"{stage}/{name}": value for name, value in values.items()})
            except OSError:
                self.remove(report)

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:
        """Write out buffered values and close the reports.

        Args:
            is_over: The run is over; otherwise another process may continue it.
            waits: Give services the time that they have at the end of a run.
        """
        for report in self:
            report.close(is_over=is_over, waits=waits)


def open_reports(
    config: Config,
    env: Environment,
    *,
    warn: Callable[[str], None] = print,
    note: Callable[[str], None] = print,
) -> Reports:
    """Return the reports that the flags select; none on ranks other than rank 0.

    Args:
        config: The configuration.
        env: This process's place in the group.
        warn: Receives a sentence when a service fails.
        note: Receives a sentence on where a service keeps the curves.
    """
    reports = Reports()
    if env.rank == 0 and config.csv is not None:
        reports.append(CsvReport(config.csv))
    if env.rank == 0 and config.tensorboard is not None:
        reports.append(TensorBoardReport(config.tensorboard))
    for service, target in ((Service.WANDB, config.wandb), (Service.MLFLOW, config.mlflow)):
        if env.rank == 0 and target is not None:
            reports.append(RemoteLogger(service, target, changed_options(config), warn=warn, note=note))
    return reports


def changed_options(config: Config) -> dict[str, str]:
    """Return the options that differ from their defaults, as text by name."""
    return {
        member.name: str(value)
        for member in fields(config)
        if (value := getattr(config, member.name)) != member.default
    }


def valid_prefix_bytes(file: Path, step: int) -> int:
    """Return the number of bytes of a CSV report up to the first row that is incomplete or of a later step.

    Returns:
        0 if the file does not exist.
    """
    size = 0
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream):
                first = line.split(b",", 1)[0]
                if not line.endswith(b"\n") or (number and not (first.isdigit() and int(first) <= step)):
                    break
                size += len(line)
    except FileNotFoundError:
        return 0
    return size
