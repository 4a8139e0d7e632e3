"""What evaluations have shown so far: the best one, and whether it is time to give up waiting for a better one.

All ranks see the same metrics, so they come to the same decisions; and what the decisions rest on is part of every
checkpoint, so a run that was restarted decides as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from ddp_trainer.train.config.metric_goal import Goal
from ddp_trainer.train.config.output_options import Keeping
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from ddp_trainer.train.config.config import Config
    from ddp_trainer.train.data.batch_plan import BatchPlan


class WatchState(TypedDict):
    """What a checkpoint holds of a watch."""

    step: int
    metrics: dict[str, float]
    best: dict[str, tuple[float, int]]
    waited: int


class Best(TypedDict):
    """The best evaluation, as the summary tells it."""

    metric: str
    value: float
    step: int


class Watch:
    """Remembers evaluations."""

    def __init__(self, config: Keeping) -> None:
        self.best = None if config.keep_best is None else Goal(config.keep_best)
        """What the best checkpoint is chosen by; None where none is kept."""
        self._early_stop = config.early_stop
        stop_goal = None if config.early_stop is None else Goal(config.early_stop.metric)
        self._goals = {goal.metric: goal for goal in (self.best, stop_goal) if goal is not None}
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._best: dict[str, tuple[float, int]] = {}
        self._waited = 0

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take down an evaluation after ``step`` steps; whether it is the best by the metric of ``keep_best``.

        Raises:
            BadConfig: the task has no metric of a name that a flag gives.
        """
        for name in self._goals:
            if name not in metrics:
                flag = "--keep-best" if self.best is not None and name == self.best.metric else "--early-stop"
                known = ", ".join(sorted(metrics)) or "none, since it has no test samples"
                raise BadConfig(f"{flag} names the metric {name!r}.", hint=f"The task has {known}.")
        self._step, self._metrics = step, dict(metrics)
        better = set()
        for name, goal in {**{name: Goal(name) for name in metrics}, **self._goals}.items():
            if goal.is_better(metrics[name], self._best[name][0] if name in self._best else None):
                self._best[name] = metrics[name], step
                better.add(name)
        if self._early_stop is not None:
            self._waited = 0 if self._early_stop.metric in better else self._waited + 1
        return self.best is not None and self.best.metric in better

    @property
    def has_waited_enough(self) -> bool:
        """The run should end early."""
        return self._early_stop is not None and self._waited >= self._early_stop.patience

    def owes(self, step: int, plan: BatchPlan, config: Config) -> bool:
        """Whether the evaluation due after so many steps is not made yet, by this process or an earlier one.

        The last step owes none: how it is evaluated is a matter of the run's end.
        """
        if not 0 < step < plan.total_steps or not plan.ends_epoch(step - 1):
            return False
        return (plan.epoch_of(step - 1) + 1) % config.evaluate_every == 0 and not self.has_seen(step)

    def has_seen(self, step: int) -> bool:
        """Whether the state after so many steps was evaluated already."""
        return self._step >= step

    def metrics_after(self, step: int) -> dict[str, float] | None:
        """Metrics of the evaluation after so many steps; None where there was none."""
        return dict(self._metrics) if self._metrics and step == self._step else None

    def best_of_run(self) -> Best | None:
        """By the metric of ``keep_best``, else of ``early_stop``, else accuracy, else loss."""
        for name in (*self._goals, "accuracy", "loss"):
            if name in self._best:
                value, step = self._best[name]
                return {"metric": name, "value": value, "step": step}
        return None

    def state_dict(self) -> WatchState:
        """Plain values only, so that it loads with ``weights_only``."""
        return {"step": self._step, "metrics": self._metrics, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: WatchState) -> None:
        """Go on from what was seen before."""
        self._step = state["step"]
        self._metrics = dict(state["metrics"])
        self._best = {name: (value, step) for name, (value, step) in state["best"].items()}
        self._waited = state["waited"]
