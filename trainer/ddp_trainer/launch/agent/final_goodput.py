"""What the time of a job went into that ends here: what its ranks told of it, and what its launcher saw since.

The states are those of the ledger (:mod:`ddp_trainer.train.config.goodput_account`), and time goes to them by the same
moments. What only a rank can tell apart, as reading a checkpoint and making a model ready, is ``startup`` here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddp_trainer.common.constants import Env, FailureReason, JobTime, Moment
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.launch.protocol.lifecycle_times import Moments
from ddp_trainer.launch.protocol.messages import Failure

if TYPE_CHECKING:
    from ddp_trainer.launch.agent.agent_config import AgentConfig
    from ddp_trainer.process.recorder import AgentRecorder


def last_account(setup: AgentConfig, moments: Moments, failure: Failure | None) -> Mapping[str, object]:
    """What the end of a run that failed tells of its time and steps; nothing where nobody can know.

    Ranks that train and keep no ledger leave it open what their time went into; that no step was ever taken a launcher
    knows that has been in every group: it listens to all programs of Python's, unless it was told not to.
    """
    told, step = setup.recorder.job_account() or setup.report.account(), setup.recorder.highest_step()
    hears = setup.program.kind != "command" and setup.environment.get(Env.METRICS_HOOKS) != "0"
    generation = setup.core.generation
    was_always_there = generation is None or generation.number == moments.groups
    if step is None or (told is None and not (hears and step == 0 and was_always_there)):
        return _steps(setup.recorder, step)
    ending = JobTime.HANG if failure is not None and failure.reason == FailureReason.HANG else JobTime.RESTART
    account = account_at_the_end(told, moments.times, time.time(), ending)
    # Of ranks that went on from a checkpoint, and took no step, nobody has told how many there were before.
    steps = _steps(setup.recorder, step) or ({"steps": 0} if told is None else {})
    return {**steps, "started": round(account.started, 3), **account.summary()}


def last_step(recorder: AgentRecorder) -> dict[str, int]:
    """Return the last step that a rank has reported, for the summary of a program that writes none itself."""
    step = recorder.highest_step()
    return {"steps": step} if step else {}


def _steps(recorder: AgentRecorder, step: int | None) -> dict[str, int]:
    """The steps of a run that took some, and how many it was to take where that is known."""
    if not step:
        return {}
    planned = recorder.steps_planned()
    return {"steps": step, "steps_planned": planned} if planned else {"steps": step}


def account_at_the_end(
    told: JobAccount | None, times: Mapping[Moment, float], now: float, ending: JobTime
) -> JobAccount:
    """The account of a job up to its end.

    Args:
        told: what ranks told last; None where none has taken a step, and none found that another did before.
        times: Unix times of this launcher; that at which it was launched is among them.
        now: Unix time of the end.
        ending: what the time since a step went into, that led to the end.
    """
    launched = times[Moment.LAUNCHED]
    account = JobAccount.begun(launched) if told is None else told
    joined, formed = times.get(Moment.JOINED, 0.0), times.get(Moment.FORMED, 0.0)
    if account.until > joined > 0.0:
        return account.up_to(now, ending)
    start = JobTime.STARTUP if launched >= account.until else JobTime.RESTART
    account = account.up_to(launched, JobTime.SCHEDULING)
    if not joined:
        return account.up_to(now, start)
    account = account.up_to(joined, start)
    if formed < joined:
        return account.up_to(now, JobTime.RENDEZVOUS)
    is_hang = ending is JobTime.HANG
    return account.up_to(formed, JobTime.RENDEZVOUS).up_to(now, JobTime.HANG if is_hang else JobTime.STARTUP)
