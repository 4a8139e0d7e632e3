"""One global step on one rank, from top to bottom: fetch, forward and backward, reduce, vote, commit.

All ranks commit a step, or none does. :func:`begin_step` clears the gradients and returns the plan of the step.
:func:`compute_step` fetches this rank's slices of the batch and adds their gradients. :func:`commit_step` reduces the
gradients, votes, and steps the optimizer or skips the step. A failure before the vote leaves every rank at the previous
step, which is then repeated. A user-written loop (:mod:`ddp_trainer.train.elastic_loop`) computes between the first and
the last function itself. ``bench overhead`` measures the overhead over a loop without these guarantees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ddp_trainer.common.time_classes import Phase, StartupPhase
from ddp_trainer.process import startup_times
from ddp_trainer.train.data.batch_plan import StepPlan
from ddp_trainer.train.data.batch_reader import merge, micro_batches, to_device
from ddp_trainer.train.data.loaders.base import BatchSlice, Request
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.goodput_tracker import NO_TIMES
from ddp_trainer.train.loop.group_components import GroupComponents
from ddp_trainer.train.loop.train_state import TrainState
from ddp_trainer.train.utils.errors import PeerFailed, WrongSamples


@dataclass(slots=True)
class StepResult:
    """Result of this rank's part of a step."""

    samples: int = 0
    """Number of its samples."""
    digest: int = 0
    """:func:`ddp_trainer.train.data.batch_plan.digest` of their ids."""
    loss: Tensor | None = None
    """Sum of their losses, a float64 scalar on the device; None without samples."""
    skipped: int = 0
    """Number of samples that could not be read; they have weight 0."""
    error: Exception | None = None
    """Error while samples were fetched; raised after the vote."""


def begin_step(state: TrainState, components: GroupComponents) -> StepPlan:
    """Clear the gradients, and return the samples of the next step and of this rank's part."""
    components.group.activity = f"in step {state.step}"
    components.group.clear_reduced_mark()
    state.optimizer.zero_grad()
    components.strategy.begin(state.step)
    return components.batches.of(state.step)


# ---------------------------------------------------------------------- fetch, forward and backward


def compute_step(state: TrainState, components: GroupComponents, step_plan: StepPlan) -> StepResult:
    """Fetch this rank's samples slice by slice, and add the gradients of each slice to the weights.

    Returns:
        The sum of the losses of this rank, and an error of a fetch.
    """
    result = StepResult(step_plan.own_samples, step_plan.own_digest)
    for batch_slice in fetch_slices(components, step_plan, result):
        seed_slice_rng(step_plan, batch_slice.slice_index, components.group.device)
        loss = forward_backward(state, components, batch_slice)
        result.loss = loss if result.loss is None else result.loss + loss
    return result


def fetch_slices(components: GroupComponents, step_plan: StepPlan, result: StepResult) -> Iterator[BatchSlice]:
    """Yield this rank's samples of a step, each slice when the one before is computed.

    Batch slices are yielded one by one, so that their results do not depend on the rank. If the components merge
    slices, all samples of the rank are one slice, with the random stream of the first. If a fetch fails, the error is
    stored in ``result``, and nothing more is fetched.
    """
    fetched: list[tuple[Batch, int]] = []
    for request in step_plan.own:
        batch, count = fetch_slice(components, request, result)
        if result.error is not None:
            return
        if count and components.merges_slices:
            fetched.append((batch, count))
        elif count:
            yield BatchSlice(request.slice_index, batch, count, step_plan.samples, is_last=request is step_plan.own[-1])
    if fetched:
        merged = merge([batch for batch, _ in fetched])
        count = sum(count for _, count in fetched)
        yield BatchSlice(step_plan.own[0].slice_index, merged, count, step_plan.samples, is_last=True)


def fetch_slice(components: GroupComponents, request: Request, result: StepResult) -> tuple[Batch, int]:
    """Return the samples of a batch slice on the device, and the number of readable ones; None and 0 after an error.

    ``result`` receives the number of skipped samples and the error.
    """
    try:
        batch, skipped = components.feed.fetch(request)
    except Exception as err:  # the user's data set may raise anything
        if components.strategy.computes_together:
            raise
        result.error = err
        return None, 0
    for sentence in skipped:
        components.on_skip(sentence)
    result.skipped += len(skipped)
    components.timer.end_phase(Phase.DATA_WAIT)
    if components.group.is_starting:
        startup_times.end_phase(StartupPhase.FIRST_BATCH)
    if components.group.device.type != "cpu":
        batch = to_device(batch, components.group.device)
        components.timer.end_phase(Phase.HOST_TO_DEVICE)
    return batch, request.ids.numel() - len(skipped)


def seed_slice_rng(step_plan: StepPlan, slice_index: int, device: torch.device) -> None:
    """Seed torch's generators for the draws of the model in a slice; ``torch.manual_seed()`` would take 140 us."""
    torch.default_generator.manual_seed(step_plan.seeds[slice_index])
    if device.type == "cuda":
        torch.cuda.manual_seed(step_plan.seeds[slice_index])


def forward_backward(state: TrainState, components: GroupComponents, batch_slice: BatchSlice) -> Tensor:
    """Add the gradients of a slice, and return the sum of its losses, a float64 scalar on the device.

    Gradients are exchanged in the last pass of the last slice. Every pass starts from the same running statistics.
    """
    strategy, timer, buffers = components.strategy, components.timer, components.buffers
    scale = state.optimizer.loss_scale
    if strategy.schedules_passes:
        total = strategy.run_schedule(batch_slice, scale)
        timer.end_phase(Phase.BACKWARD)
        return total
    total = torch.empty(0)
    most = state.context.config.micro_batch
    batches = [batch_slice.batch] if most is None else micro_batches(batch_slice.batch, batch_slice.samples, most)
    for number, batch in enumerate(batches, start=1):
        with nullcontext() if batch_slice.is_last and number == len(batches) else strategy.no_sync():
            with strategy.forward_timer:
                losses = strategy.forward(batch)
            loss = losses.detach().sum(dtype=torch.float64)
            timer.end_phase(Phase.FORWARD)
            strategy.backward(losses if scale is None else scale.up(losses), batch_slice.total_samples)
            timer.end_phase(Phase.BACKWARD)
        total = loss if number == 1 else total + loss
        if buffers is not None:
            buffers.slice_done()
    if buffers is not None:
        buffers.close_slice(batch_slice.slice_index)
    if strategy.separates_slices:
        strategy.slice_done(batch_slice.slice_index)
    return total


# ---------------------------------------------------------------------- reduce, vote, commit


def commit_step(
    state: TrainState,
    components: GroupComponents,
    step_plan: StepPlan,
    result: StepResult,
    *,
    stop: bool,
    save: bool,
    times: Sequence[float],
) -> StepDecision:
    """Synchronize gradients, vote, and commit the step on all ranks or on none; return the decision of the vote.

    Args:
        state: The training state; its step counter moves to the next step.
        components: The components of the worker group.
        step_plan: The samples of the step.
        result: The result of this rank's part.
        stop: This rank wants to stop after the step.
        save: This rank wants to save a checkpoint after the step.
        times: This rank's times for the vote; see :meth:`.GoodputTracker.time_report`.

    Raises:
        PeerLost: A peer was lost or failed; nothing was committed.
        WrongSamples: The ranks disagree about the step; nothing was committed.
        NonFiniteLoss: The loss or a gradient is not finite, and the run must stop; nothing was committed.
        RollBack: The loss or a gradient is not finite, and the run must roll back; nothing was committed.
    """
    group, strategy = components.group, components.strategy
    # The other ranks wait for these collectives, even if this rank has no samples or could not fetch them.
    strategy.reduce(step_plan.samples)
    loss = strategy.reported_loss(components.no_loss if result.loss is None else result.loss)
    report = StepReport(
        samples=result.samples if group.counts else 0,
        digest=result.digest if group.counts else 0,
        loss=loss if group.counts else components.no_loss,
        failed=result.error is not None,
        stop=stop,
        save=save,
        skipped=result.skipped if group.counts else 0,
        flaw=state.optimizer.check_grads(),
        costs=() if components.balance is None else components.balance.cost_vector(result.samples),
        time=times,
    )
    if components.buffers is not None:
        components.buffers.gather()
    group.mark_reduced()
    components.in_doubt = True
    decision = decide_step(report, group)
    components.in_doubt = decision.is_finite and not decision.failed
    components.timer.end_phase(Phase.COMM_EXPOSED)
    if result.error is not None:
        raise result.error
    check(decision, step=step_plan.step, samples=step_plan.samples, digest=step_plan.digest)
    update_weights(state, components, step_plan, decision)
    state.tracker.commit(step_plan.ids, decision.skipped)
    if step_plan.ends_epoch:
        state.tracker.close_epoch()
    state.step += 1
    if components.balance is not None and (batch_slices := components.balance.rebalance(decision.costs)) is not None:
        components.assign_slices(batch_slices)
    components.in_doubt = False
    return decision


def update_weights(state: TrainState, components: GroupComponents, step_plan: StepPlan, decision: StepDecision) -> None:
    """Step the optimizer; if the loss or a gradient is not finite, apply the policy for that instead."""
    if decision.is_finite:
        if components.buffers is not None:
            components.buffers.commit()
        state.optimizer.step(step_plan.step)
    else:
        if components.buffers is not None:
            components.buffers.discard()
        state.context.guard.handle_nonfinite(step_plan.step, decision.loss, state.optimizer.loss_scale)
    components.strategy.on_step_end(step_plan.step, state.optimizer.optimizer)
    components.timer.end_phase(Phase.OPTIMIZER)


class StepReport(NamedTuple):
    """Report of one rank about a step."""

    samples: int
    digest: int
    """:func:`ddp_trainer.train.data.batch_plan.digest` of the ids that it processed."""
    loss: Tensor
    """Sum of its samples' losses, a scalar on the device."""
    failed: bool = False
    stop: bool = False
    save: bool = False
    skipped: int = 0
    """Samples among them that could not be read."""
    flaw: Tensor | None = None
    """Result of :meth:`~ddp_trainer.train.optim.optimizer.OptimizerWrapper.check_grads`, a scalar on the device."""
    costs: Sequence[float] = ()
    """From :meth:`~ddp_trainer.train.parallel.load_balancer.LoadBalancer.cost_vector`; empty without balancing."""
    time: Sequence[float] = NO_TIMES
    """From :meth:`~ddp_trainer.train.loop.goodput_tracker.GoodputTracker.time_report`."""


class StepDecision(NamedTuple):
    """Sum of the reports of all ranks; each flag is the number of ranks that set it."""

    samples: int
    digest: int
    loss: float
    """Sum of the losses of all samples."""
    failed: int
    stop: int
    save: int
    skipped: int
    costs: Sequence[float]
    is_finite: bool
    """The loss and all gradients are finite on all ranks."""
    time: Sequence[float] = NO_TIMES

    @property
    def mean_loss(self) -> float:
        """Loss per sample."""
        return self.loss / self.samples


def decide_step(report: StepReport, group: Group) -> StepDecision:
    """Sum the reports of all ranks; this is the only point of a step at which the host waits for the device."""
    numbers = _as_numbers(report) if group.world_size == 1 else group.read_sum(_as_tensor(report, group.device))
    samples, digest, loss, failed, stop, save, skipped, flaw, *more = numbers
    time, costs = tuple(more[: len(NO_TIMES)]), tuple(more[len(NO_TIMES) :])
    is_finite = math.isfinite(loss) and flaw == 0
    counts = (int(samples), int(digest), loss, int(failed), int(stop), int(save), int(skipped))
    return StepDecision(*counts, costs, is_finite, time)


def _as_tensor(report: StepReport, device: torch.device) -> Tensor:
    """Return the report as float64 vector: counts and sums of 32-bit hashes stay far below 2^53, so they are exact."""
    if device.type == "cpu":
        return torch.tensor(_as_numbers(report), dtype=torch.float64)
    # The page is pinned, because a copy from pageable memory would wait for the GPU before the exchange.
    flags = (report.failed, report.stop, report.save)
    numbers = [report.samples, report.digest, 0, *flags, report.skipped, 0, *report.time, *report.costs]
    page = _host_buffer(len(numbers), is_pinned=device.type == "cuda")
    page.copy_(torch.tensor(numbers, dtype=torch.float64))
    sums = page.to(device, non_blocking=True)
    sums[2] = report.loss
    if report.flaw is not None:
        sums[7] = report.flaw
    return sums


@lru_cache(maxsize=4)
def _host_buffer(size: int, *, is_pinned: bool) -> Tensor:
    """Return the reusable host buffer of a report; it is free again once the decision was read, so one is enough."""
    return torch.empty(size, dtype=torch.float64, pin_memory=is_pinned)


def _as_numbers(report: StepReport) -> list[float]:
    flags = (report.failed, report.stop, report.save)
    flaw = 0.0 if report.flaw is None else report.flaw.item()
    counts = (report.samples, report.digest, report.loss.item(), *flags, report.skipped, flaw)
    return [*counts, *report.time, *report.costs]


def check(decision: StepDecision, *, step: int, samples: int, digest: int) -> None:
    """Check that the step can be committed.

    ``samples`` and ``digest``, the sum of the hashes of their ids, are those of the plan.

    Raises:
        PeerFailed: A rank failed in this step.
        WrongSamples: The ranks together processed other samples than the plan defines.
    """
    if decision.failed:
        raise PeerFailed(
            f"{decision.failed} of the other ranks failed in step {step}.",
            hint="Read the errors of these ranks in the log.",
        )
    if decision.samples != samples:
        raise WrongSamples(
            f"The ranks processed {decision.samples} samples in step {step}, which has {samples}.",
            hint="Check that all ranks run the same code with the same flags.",
        )
    if decision.digest != digest:
        raise WrongSamples(
            f"The ranks processed {samples} samples in step {step}, but not the ones that belong to it.",
            hint="Check that all ranks run the same code with the same flags.",
        )
