"""Curves in Weights & Biases and MLflow, sent by a thread of rank 0.

:class:`RemoteLogger` puts values into a queue and never waits for the service. Its thread imports the library, opens
the run and sends the values. Both services receive the step as a metric. Values of steps that the run has already are
dropped, so repeated steps appear once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from queue import Full, Queue
from typing import Any, Final, NamedTuple, Protocol

from ddp_trainer.train.utils.errors import BadConfig

FLUSH_SECONDS: Final = 20.0
"""Time that the last values have to reach the service, in seconds."""
MAX_PENDING_VALUES: Final = 100_000
"""Steps and evaluations that wait for a slow service; with more, the logger is dropped."""
LAST_WORDS_SECONDS: Final = 1.0
"""Time that a failing rank 0, or one that gets another rank, waits for its last values, in seconds."""
RUN_TAG: Final = "ddp.run_id"
"""Tag of a run in MLflow, which chooses run ids itself."""
_BATCH: Final = 1000
"""Maximum number of metrics in one request to MLflow."""
_MOST_REASON_CHARACTERS: Final = 300


class Service(StrEnum):
    """Service for curves; the value is the package, the extra and the flag."""

    WANDB = "wandb"
    MLFLOW = "mlflow"


class Point(NamedTuple):
    """Values of one step by name."""

    step: int
    values: Mapping[str, float]


class ServiceRun(Protocol):
    """Open run of a service."""

    last_step: int
    """Highest step that the run has."""
    place: str
    """Where people find the run."""

    def write(self, points: Sequence[Point]) -> None:
        """Send points, in the order of their steps."""

    def end(self, *, is_over: bool) -> None:
        """Send what is buffered; ``is_over`` is False if another process may continue the run."""


class WandbRun:
    """Run of Weights & Biases; ``WANDB_MODE=offline`` writes it to ``WANDB_DIR``."""

    def __init__(self, project: str, run_id: str, options: Mapping[str, str]) -> None:
        import wandb  # noqa: PLC0415 - optional

        self._run = wandb.init(
            project=project,
            id=os.environ.get("WANDB_RUN_ID") or run_id,
            resume="allow",
            config=dict(options),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.last_step = int(self._run.summary.get("step") or 0)
        self.place = self._run.url or f"run {self._run.id}, offline in {self._run.settings.sync_dir}"

    def write(self, points: Sequence[Point]) -> None:
        """Log each point with its step as the x axis."""
        for point in points:
            self._run.log({"step": point.step, **point.values})

    def end(self, *, is_over: bool) -> None:
        """Finish the run; as failed if it is not over."""
        self._run.finish(exit_code=0 if is_over else 1)


class MlflowRun:
    """Run of MLflow, at ``MLFLOW_TRACKING_URI``: a server, or a local store such as ``sqlite:///curves.db``."""

    def __init__(self, experiment: str, run_id: str, options: Mapping[str, str]) -> None:
        import mlflow  # noqa: PLC0415 - optional
        from mlflow.entities import Metric, Param  # noqa: PLC0415 - as above

        self._client, self._metric = mlflow.MlflowClient(), Metric
        given = os.environ.get("MLFLOW_RUN_ID")
        if given:
            found = [self._client.get_run(given)]
        else:
            place = mlflow.set_experiment(experiment).experiment_id
            found = self._client.search_runs([place], f"tags.`{RUN_TAG}` = '{run_id}'", max_results=1)
        run = found[0] if found else self._client.create_run(place, tags={RUN_TAG: run_id})
        self._id = run.info.run_id
        if found:
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._client.log_batch(self._id, params=[Param(*named) for named in options.items()])
        self.last_step = int(run.data.metrics.get("step", 0))
        self.place = f"run {self._id} of {mlflow.get_tracking_uri()}"

    def write(self, points: Sequence[Point]) -> None:
        """Log all points in as few requests as possible."""
        now = int(time.time() * 1000)
        metrics = [
            self._metric(name, value, now, point.step)
            for point in points
            for name, value in {"step": float(point.step), **point.values}.items()
        ]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics=metrics[first : first + _BATCH])

    def end(self, *, is_over: bool) -> None:
        """Mark the run as finished if it is over."""
        if is_over:
            self._client.set_terminated(self._id)


RUNS: Final[Mapping[Service, Callable[[str, str, Mapping[str, str]], ServiceRun]]] = {
    Service.WANDB: WandbRun,
    Service.MLFLOW: MlflowRun,
}


def new_points(batch: Sequence[Mapping[str, Any]], last_step: int) -> list[Point]:
    """Return the points of a batch without steps that the run has already.

    An evaluation follows the values of its step, so it is kept at the last step too.
    """
    points = []
    for line in batch:
        values = {name: value for name, value in line.items() if name != "step"}
        is_training = any(name.startswith("train/") for name in values)
        if "step" in line and line["step"] >= last_step + is_training:
            last_step = line["step"]
            points.append(Point(last_step, values))
    return points


class RemoteLogger:
    """Logger of one service. A thread calls the library, so a step does not wait for it."""

    def __init__(
        self,
        service: Service,
        target: str,
        options: Mapping[str, str],
        *,
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """Create the logger; :meth:`begin` starts its thread.

        Args:
            service: The service.
            target: Project of W&B, or experiment of MLflow.
            options: Configuration of the run, by name.
            warn: Receives one warning if the service fails.
            note: Receives the place of the run.
        """
        self._service, self._target, self._options = service, target, options
        self._warn, self._note = warn, note
        self._thread: threading.Thread | None = None
        self._queue: Queue[Mapping[str, Any] | bool] = Queue(MAX_PENDING_VALUES)
        """Values of steps; at the end a bool, which is True if the run is over."""
        self._lock = threading.Lock()
        self._has_failed = False

    def begin(self, step: int, run_id: str = "") -> None:  # noqa: ARG002 - repeated steps are dropped when they are sent
        """Start the thread that continues the run with this id; a running thread stays.

        Raises:
            BadConfig: If the package of the service is not installed.
        """
        if self._thread is not None or self._has_failed:
            return
        spec = importlib.util.find_spec(self._service)
        if spec is None or spec.origin is None:  # W&B's own folder of runs, ./wandb, is found as a namespace
            raise BadConfig(
                f"--{self._service} needs the package {self._service}, which is not installed.",
                hint=f"Install kubectl-ddp[{self._service}].",
            )
        self._thread = threading.Thread(target=self._send, args=(run_id,), name=f"ddp-{self._service}", daemon=True)
        self._thread.start()

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Pass the values of a step on without waiting."""
        if self._thread is not None:
            try:
                self._queue.put_nowait({"step": step, "epoch": epoch, **values})
            except Full:
                self._fail("it has been slower than training for too long")

    def close(self, *, is_over: bool = True, waits: bool = True) -> None:
        """Send the last values and end the thread.

        Args:
            is_over: False if another process may continue the run.
            waits: False to wait for :data:`LAST_WORDS_SECONDS` only, since this process fails or gets another rank.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        limit = FLUSH_SECONDS if waits else LAST_WORDS_SECONDS
        deadline = time.monotonic() + limit
        with contextlib.suppress(Full):
            self._queue.put(is_over, timeout=limit)
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive() and waits:
            self._fail(f"it did not take its last values within {limit:g} s")

    def _send(self, run_id: str) -> None:
        """Open the run and send all values to it, until the end or a failure."""
        try:
            run = RUNS[self._service](self._target, run_id, self._options)
            self._note(f"{self._service}: {run.place}")
            for batch, is_over in self._batches():
                if points := new_points(batch, run.last_step):
                    run.write(points)
                    run.last_step = points[-1].step
                if is_over is not None:
                    run.end(is_over=is_over)
        except Exception as err:  # noqa: BLE001 - a library may raise anything, and training continues
            reason = " ".join(str(err).split()) or type(err).__name__
            self._fail(reason[:_MOST_REASON_CHARACTERS].rstrip("."))

    def _batches(self) -> Iterator[tuple[list[Mapping[str, Any]], bool | None]]:
        """Yield the values since the last batch, and the end if it has come; a slow service gets larger batches."""
        is_over: bool | None = None
        while is_over is None and not self._has_failed:
            batch: list[Mapping[str, Any]] = []
            while is_over is None and not (batch and self._queue.empty()):
                item = self._queue.get()
                if isinstance(item, bool):
                    is_over = item
                else:
                    batch.append(item)
            yield batch, is_over

    def _fail(self, why: str) -> None:
        """Report the failure once, and send no further values; training continues."""
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        self._thread = None
        if is_first:
            self._warn(f"--{self._service} failed, and the run continues without it: {why}.")
