"""Process that sends the curves of a run to Weights & Biases or MLflow.

``python -m ddp_trainer.train.observability.logger_process SERVICE TARGET RUN_ID OPTIONS``

It reads one JSON object per line from stdin until ``{"end": true}`` or the end of stdin. On stdout it reports where the
run is, or why it failed. :class:`~ddp_trainer.train.observability.remote_logger.RemoteLogger` starts it. Both services
receive the step as a metric. Values of steps that the run has already are dropped, so repeated steps appear once.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

FLUSH_SECONDS: Final = 20.0
"""Time that the last values have to reach the service, in seconds."""
RUN_TAG: Final = "ddp.run_id"
"""Tag of a run in MLflow, which chooses run ids itself."""
_BATCH: Final = 1000
"""Maximum number of metrics in one request to MLflow."""


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
            self._client.log_batch(self._id, params=[Param(*each) for each in options.items()])
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


def read_batches(descriptor: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON objects that have arrived since the last batch; a slow consumer gets larger batches."""
    rest = b""
    while chunk := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [json.loads(line) for line in lines]


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


def exit_with_trainer(is_open: threading.Event) -> None:
    """Exit :data:`FLUSH_SECONDS` seconds after the trainer closed stdin, or at once if the run is not open yet.

    The next process of the trainer opens the run, and MLflow would have two.
    """
    closed = select.poll()
    closed.register(0, 0)  # a hangup is always reported
    closed.poll()
    if is_open.is_set():
        time.sleep(FLUSH_SECONDS)
    os._exit(1)


def send(run: ServiceRun) -> None:
    """Send the lines of stdin to the service, until the end of the run or of stdin."""
    is_over = False
    for batch in read_batches(0):
        if points := new_points(batch, run.last_step):
            run.write(points)
            run.last_step = points[-1].step
        if is_over := any("end" in line for line in batch):
            break
    run.end(is_over=is_over)


def main(service: str, target: str, run_id: str, options: str) -> int:
    """Open the run and send the lines of stdin to it; return the exit code."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints is no answer
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the trainer stops in an orderly way and closes stdin
    is_open = threading.Event()
    threading.Thread(target=exit_with_trainer, args=(is_open,), daemon=True).start()
    try:
        run = RUNS[Service(service)](target, run_id, json.loads(options))
        is_open.set()
        print(json.dumps({"note": run.place}), file=answers)
        send(run)
    except Exception as err:  # noqa: BLE001 - a library may raise anything, and training continues
        why = " ".join(str(err).split()) or type(err).__name__
        print(json.dumps({"error": why[:300].rstrip(".")}), file=answers)
        os._exit(1)  # without exit functions of the library, which may wait for the network
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
