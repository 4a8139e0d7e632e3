"""One global step on one rank, in the order of this file; all ranks commit it, or none does.

:func:`begin_step` clears the gradients. :func:`compute_step` fetches this rank's samples and runs forward and backward
passes. :func:`commit_step` synchronizes gradients, checks them, votes, and steps the optimizer or skips the step. A
user-written loop (:mod:`ddp_trainer.train.elastic_loop`) computes between the first and the last function itself.
``bench overhead`` measures the overhead over a loop without these guarantees.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.train.data.keyed_rng import Stream
from ddp_trainer.train.data.loaders.step_batches import StepPlan
from ddp_trainer.train.loop.batch_slices import StepResult, fetch_slices
from ddp_trainer.train.loop.group_components import GroupComponents
from ddp_trainer.train.loop.step_consensus import StepDecision, StepReport, check, decide_step
from ddp_trainer.train.loop.train_state import TrainState


def begin_step(state: TrainState, parts: GroupComponents) -> StepPlan:
    """Clear the gradients, and return the samples of the next step and of this rank's part."""
    parts.group.activity = f"in step {state.step}"
    parts.group.begin_step()
    state.optimizer.zero_grad()
    parts.strategy.begin(state.step)
    return parts.batches.of(state.step)


def compute_step(state: TrainState, parts: GroupComponents, batch: StepPlan) -> StepResult:
    """Fetch this rank's samples slice by slice, and add the gradients of each slice to the weights.

    Args:
        state: Model and optimizer. Gradients are added to the weights.
        parts: Components of this group.
        batch: Plan of the step.

    Returns:
        The sum of the losses of this rank, and an error of a fetch.
    """
    result = StepResult(batch.own_samples, batch.own_digest)
    for part in fetch_slices(parts, batch, result):
        parts.random.enter(Stream.MODEL, batch.step, part.slice_index)
        loss = parts.strategy.forward_backward(part, state.optimizer, parts.buffers, parts.timer)
        result.loss = loss if result.loss is None else result.loss + loss
    return result


def commit_step(
    state: TrainState,
    parts: GroupComponents,
    batch: StepPlan,
    result: StepResult,
    *,
    stop: bool,
    save: bool,
    times: Sequence[float],
) -> StepDecision:
    """Synchronize gradients, vote, and commit the step on all ranks or on none; return the decision of the vote.

    Args:
        state: The training state; its step counter moves to the next step.
        parts: The components of the worker group.
        batch: The samples of the step.
        result: The result of this rank's part.
        stop: This rank wants to stop after the step.
        save: This rank wants to save a checkpoint after the step.
        times: This rank's times for the vote; see :meth:`.goodput_tracker.GoodputTracker.word`.

    Raises:
        PeerLost: A peer was lost or failed; nothing was committed.
        WrongSamples: The ranks disagree about the step; nothing was committed.
        NonFiniteLoss: The loss or a gradient is not finite, and the run must stop; nothing was committed.
        RollBack: The loss or a gradient is not finite, and the run must roll back; nothing was committed.
    """
    strategy, optimizer, buffers, counts = parts.strategy, state.optimizer, parts.buffers, parts.group.counts
    # The other ranks wait for these collectives, even if this rank has no samples or could not fetch them.
    strategy.reduce(batch.samples)
    loss = strategy.reported_loss(parts.no_loss if result.loss is None else result.loss)
    report = StepReport(
        samples=result.samples if counts else 0,
        digest=result.digest if counts else 0,
        loss=loss if counts else parts.no_loss,
        failed=result.error is not None,
        stop=stop,
        save=save,
        skipped=result.skipped if counts else 0,
        flaw=optimizer.check_grads(),
        busy=() if parts.balance is None else parts.balance.cost_vector(result.samples),
        time=times,
    )
    if buffers is not None:
        buffers.gather()
    parts.group.mark_reduced()
    parts.in_doubt = True
    decision = decide_step(report, parts.group)
    parts.in_doubt = decision.is_finite and not decision.failed
    parts.timer.end_phase(Phase.COMM_EXPOSED)
    if result.error is not None:
        raise result.error
    check(decision, step=batch.step, samples=batch.samples, digest=batch.digest)
    if decision.is_finite:
        if buffers is not None:
            buffers.commit()
        optimizer.step(batch.step)
    else:
        if buffers is not None:
            buffers.discard()
        state.context.guard.handle_nonfinite(batch.step, decision, optimizer)
    strategy.on_step_end(batch.step, optimizer.optimizer)
    parts.timer.end_phase(Phase.OPTIMIZER)
    state.commit(batch.ids, skipped=decision.skipped)
    if parts.balance is not None and (batch_slices := parts.balance.rebalance(decision.busy)) is not None:
        parts.assign_slices(batch_slices)
    parts.in_doubt = False
    return decision
