"""Time breakdown of a job that ends in this pod: what its ranks reported, and what its launcher measured since.

The states are those of the ledger (:mod:`ddp_trainer.train.config.goodput_account`), with the same moments between
them. States that only a rank can separate, such as reading a checkpoint and preparing a model, are ``startup`` here.
The main entry point is :func:`last_account`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddp_trainer.common.constants import Env, FailureReason, LifecycleEvent
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.launch.protocol.lifecycle_times import LifecycleTimes
from ddp_trainer.launch.protocol.messages import Failure

if TYPE_CHECKING:
    from ddp_trainer.launch.agent.agent_config import AgentConfig
    from ddp_trainer.process.recorder import AgentRecorder


def last_account(setup: AgentConfig, moments: LifecycleTimes, failure: Failure | None) -> Mapping[str, object]:
    """Return the time breakdown and the steps of a run that failed; empty where they are unknown.

    The time breakdown is unknown for ranks that train without a ledger. A launcher that was in every group can find
    that no step was ever taken: it counts the steps of all Python programs, unless ``$DDP_METRICS_HOOKS`` is 0.
    """
    known, step = setup.recorder.job_account() or setup.report.account(), setup.recorder.highest_step()
    was_always_there = was_in_every_group(setup, moments)
    if step is None or (known is None and not (counts_steps(setup) and step == 0 and was_always_there)):
        return _steps(setup.recorder, step)
    ending = JobTime.HANG if failure is not None and failure.reason == FailureReason.HANG else JobTime.RESTART
    account = account_at_the_end(known, moments.times, time.time(), ending)
    # Ranks that resumed from a checkpoint and took no step have not reported the number of earlier steps.
    steps = _steps(setup.recorder, step) or ({"steps": 0} if known is None else {})
    return {**steps, "started": round(account.started, 3), **account.summary()}


def counts_steps(setup: AgentConfig) -> bool:
    """Return whether the steps of this program are counted without its help."""
    return setup.program.kind != "command" and setup.environment.get(Env.METRICS_HOOKS) != "0"


def was_in_every_group(setup: AgentConfig, moments: LifecycleTimes) -> bool:
    """Return whether this pod has been in every group of the run: it neither replaced another nor was added."""
    generation = setup.core.generation
    return generation is None or generation.number == moments.groups


def job_startup(setup: AgentConfig, moments: LifecycleTimes) -> Mapping[str, object]:
    """Return the start of the job, as this pod saw it, as an entry of a summary; empty if it is not known."""
    startup = setup.recorder.startup() if was_in_every_group(setup, moments) else {}
    return {"startup": startup} if startup else {}


def last_step(recorder: AgentRecorder) -> dict[str, int]:
    """Return the last step that a rank has reported, for a program that writes no summary."""
    step = recorder.highest_step()
    return {"steps": step} if step else {}


def _steps(recorder: AgentRecorder, step: int | None) -> dict[str, int]:
    """Return the steps of a run, and the planned steps if known; empty for a run without steps."""
    if not step:
        return {}
    planned = recorder.total_steps()
    return {"steps": step, "steps_planned": planned} if planned else {"steps": step}


def account_at_the_end(
    known: JobAccount | None, times: Mapping[LifecycleEvent, float], now: float, ending: JobTime
) -> JobAccount:
    """Return the time breakdown of a job up to its end.

    Args:
        known: Last time breakdown that ranks reported; None if no rank took a step or found an earlier one.
        times: Unix times of this launcher in seconds, which include the time of its launch.
        now: Unix time of the end, in seconds.
        ending: State that led to the end; it gets the time since the last step.
    """
    launched = times[LifecycleEvent.LAUNCHED]
    account = JobAccount.empty(launched) if known is None else known
    joined, formed = times.get(LifecycleEvent.JOINED, 0.0), times.get(LifecycleEvent.FORMED, 0.0)
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
