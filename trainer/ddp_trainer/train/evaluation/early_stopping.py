"""Track evaluations: the best one, and whether the run should stop early.

The entry point is :class:`EvaluationTracker`. All ranks see the same metrics, so they decide the same. The state of a
tracker is in every checkpoint, so a restarted run decides as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from ddp_trainer.train.data.batch_plan import BatchPlan


class WatchState(TypedDict):
    """State of a tracker in a checkpoint."""

    step: int
    metrics: dict[str, float]
    best: dict[str, tuple[float, int]]
    waited: int


class Best(TypedDict):
    """Best evaluation, as reported in the summary."""

    metric: str
    value: float
    step: int


class EvaluationTracker:
    """Tracks the best evaluations and the patience of early stopping."""

    def __init__(self, config: Config) -> None:
        self.best = None if config.keep_best is None else TargetMetric(config.keep_best)
        """Metric that selects the best checkpoint; None if no best checkpoint is kept."""
        self._early_stop = config.early_stop
        stop_goal = None if config.early_stop is None else TargetMetric(config.early_stop.metric)
        self._goals = {goal.metric: goal for goal in (self.best, stop_goal) if goal is not None}
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._best: dict[str, tuple[float, int]] = {}
        self._waited = 0

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Record the evaluation after ``step`` steps.

        Returns:
            True if it is the best by the metric of ``keep_best``.

        Raises:
            BadConfig: A flag names a metric that the task does not have.
        """
        for name in self._goals:
            if name not in metrics:
                flag = "--keep-best" if self.best is not None and name == self.best.metric else "--early-stop"
                known = ", ".join(sorted(metrics)) or "none, since it has no test samples"
                raise BadConfig(f"{flag} names the metric {name!r}.", hint=f"The task has {known}.")
        self._step, self._metrics = step, dict(metrics)
        better = set()
        for name, goal in {**{name: TargetMetric(name) for name in metrics}, **self._goals}.items():
            if goal.is_better(metrics[name], self._best[name][0] if name in self._best else None):
                self._best[name] = metrics[name], step
                better.add(name)
        if self._early_stop is not None:
            self._waited = 0 if self._early_stop.metric in better else self._waited + 1
        return self.best is not None and self.best.metric in better

    @property
    def should_stop(self) -> bool:
        """True if the run should stop early."""
        return self._early_stop is not None and self._waited >= self._early_stop.patience

    def is_eval_due(self, step: int, plan: BatchPlan, config: Config) -> bool:
        """Return True if an evaluation is due after this many steps and has not run, in this process or an earlier one.

        False for the last step, whose evaluation belongs to the end of the run.

        Args:
            step: Number of committed global steps.
            plan: Batch plan of the run.
            config: Options of the run.
        """
        if not 0 < step < plan.total_steps or not plan.is_epoch_end(step - 1):
            return False
        return (plan.epoch_of(step - 1) + 1) % config.evaluate_every == 0 and not self.has_seen(step)

    def has_seen(self, step: int) -> bool:
        """Return True if the state after this many steps has been evaluated."""
        return self._step >= step

    def metrics_after(self, step: int) -> dict[str, float] | None:
        """Return the metrics of the evaluation after this many steps; None without one."""
        return dict(self._metrics) if self._metrics and step == self._step else None

    def best_of_run(self) -> Best | None:
        """Return the best evaluation by the metric of ``keep_best``, else ``early_stop``, else accuracy, else loss."""
        for name in (*self._goals, "accuracy", "loss"):
            if name in self._best:
                value, step = self._best[name]
                return {"metric": name, "value": value, "step": step}
        return None

    def state_dict(self) -> WatchState:
        """Return the state as plain values, which ``weights_only`` can load."""
        return {"step": self._step, "metrics": self._metrics, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: WatchState) -> None:
        """Load a stored state."""
        self._step = state["step"]
        self._metrics = dict(state["metrics"])
        self._best = {name: (value, step) for name, (value, step) in state["best"].items()}
        self._waited = state["waited"]
