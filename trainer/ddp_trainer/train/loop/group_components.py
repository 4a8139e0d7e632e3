"""Components that belong to one worker group: :class:`GroupComponents`.

:func:`build_state` builds what the process keeps over worker groups. :func:`build_components` builds what belongs to
one worker group. :class:`~ddp_trainer.train.trainer.Trainer` calls both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train.config.config import Config, check_rollback, layout_of
from ddp_trainer.train.config.option_values import BalancerName, EvaluateOn, Level, OnBadSample
from ddp_trainer.train.data.batch_plan import BatchPlan, SampleTracker, StepBatches, choose_batch_slices, owned
from ddp_trainer.train.data.batch_reader import is_stream, to_device
from ddp_trainer.train.data.loaders.base import Feed
from ddp_trainer.train.data.loaders.factory import known_count, make_feed, sample_count
from ddp_trainer.train.data.loaders.map_reader import first_batch
from ddp_trainer.train.data.task import Batch, BlockSamples, Samples
from ddp_trainer.train.deferred_init.skip_init import init_weights, is_deferred, materialize
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.evaluation.evaluate import Evaluation, EvenEvaluation, TreeEvaluation
from ddp_trainer.train.exact.buffer_sync import FirstRanksBuffers, SharedBuffers, TreeBuffers
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_state import TrainState, shard_writer
from ddp_trainer.train.loop.user_loop import UserOptimizer, UserStrategy, UserTask
from ddp_trainer.train.observability.console import LoadRebalanced
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.optim.optimizer import LossScale, OptimizerWrapper
from ddp_trainer.train.parallel.factory import build, measure_waits
from ddp_trainer.train.parallel.load_balancer import LoadBalancer
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments
from ddp_trainer.train.transforms.model_transforms import in_training_format, prepare
from ddp_trainer.train.utils.errors import BadTask

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


@dataclass(slots=True, kw_only=True)
class GroupComponents:
    """Components that train and evaluate in one worker group."""

    group: Group
    strategy: Strategy
    feed: Feed
    batches: StepBatches
    buffers: SharedBuffers | None
    """Synchronization of the model's buffers; None for a model without buffers."""
    timer: StepTimer
    evaluation: Evaluation
    balance: LoadBalancer | None
    on_skip: Callable[[str], None]
    """Receives a message for each sample that could not be read."""
    batch_slices: range
    """Batch slices that this rank owns."""
    merges_slices: bool
    """All batch slices of this rank are computed in one pass."""
    no_loss: Tensor
    """Zero, a float64 scalar on the device."""
    in_doubt: bool = False
    """True between this rank's vote and the commit: other ranks may have committed the step."""

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Assign the batch slices of all ranks, in rank order, from the next step on.

        No collective may run here: the weights have moved, and the step is not counted everywhere yet.
        """
        self.batch_slices = batch_slices[self.group.rank]
        for part in (self.batches, self.feed):
            part.assign_slices(self.batch_slices)
        self.strategy.assign_slices(batch_slices)
        if self.buffers is not None:
            self.buffers.assign_slices(batch_slices)

    def restart(self) -> None:
        """Resume after weights and buffers were loaded from a checkpoint in the same group."""
        if self.buffers is not None:
            self.buffers.restart()
        # Prefetched samples belong to later steps than the next one, so the feed must drop them.
        self.feed.assign_slices(self.batch_slices)

    def close(self) -> None:
        """Close the feed, and undo the changes of an uncommitted step to buffers."""
        self.feed.close()
        if self.buffers is not None:
            self.buffers.discard()


def build_state(
    context: RunContext, history: GoodputTracker, stored_batch_slices: int | None, *, loads: bool = False
) -> TrainState:
    """Build the state that outlives a worker group.

    Args:
        context: The context of the run.
        history: The account of time and lost steps.
        stored_batch_slices: Number of batch slices of the checkpoint or state to resume from; None for a new run.
        loads: The model's own state is loaded afterwards. A distributed model then gets no initial weights. It must
            be equal on all ranks.

    Raises:
        BadConfig: A flag does not fit the task, the group or another flag.
    """
    config, group = context.config, context.process.group
    loaded = frozenset(context.model.state_dict()) if loads and config.is_model_sharded else frozenset()
    sharded = _apply_layout(config, group)
    plan = _plan(context, stored_batch_slices)
    check_rollback(config, keeps_checkpoints=config.checkpoint_dir is not None, sequential=plan.sequential)
    if sharded is None:
        if is_deferred(context.model):
            materialize(context.model, group.device)
            init_weights(context.model, context.task, config.seed, loaded)
        context.model.to(group.device)
    losses = prepare(context.model, context.task.losses, config, group, context.process.progress.warn_rank)
    if sharded is not None:
        sharded = _shard_model(context, sharded, loaded)
    loss_scale = LossScale(group.device) if config.precision is PrecisionName.FP16 else None
    return TrainState(
        context=context,
        history=history,
        plan=plan,
        tracker=SampleTracker(plan.samples),
        losses=losses,
        optimizer=(
            UserOptimizer(context.task, config, loss_scale)
            if isinstance(context.task, UserTask)
            else OptimizerWrapper.build(context.task, context.model, config, plan.total_steps, loss_scale, sharded)
        ),
        sharded=sharded,
        shard_writer=shard_writer(context, sharded),
    )


def build_components(state: TrainState) -> GroupComponents:
    """Build the components of the current worker group; all ranks must hold the same state by now.

    Raises:
        BadConfig: A flag does not fit the group or another flag.
        BadTask: The task cannot be evaluated.
    """
    context, plan = state.context, state.plan
    config, group, model = context.config, context.process.group, context.model
    # The strategy of a user-written loop has neither a first broadcast nor a first pass that must not be interrupted.
    group.is_starting = not isinstance(context.task, UserTask)
    layout = Layout() if state.sharded is None else state.sharded.mesh.layout
    batch_slices = owned(plan.batch_slices, group.data_size, group.data_rank)
    balance = _build_balancer(context, plan)
    arguments = StrategyArguments(
        model=model,
        losses=state.losses,
        group=group,
        plan=plan,
        config=config,
        sharded=state.sharded,
        example=None if state.sharded is None else lambda: _example(context),
        waits=measure_waits(model, layout, group, context.timer, context.process.recorder),
        forward_timer=nullcontext() if balance is None or group.device.type != "cuda" else balance,
    )
    if isinstance(context.task, UserTask):
        strategy: Strategy = UserStrategy(arguments, state.optimizer.optimizer)
    else:
        strategy = build(arguments)
    return GroupComponents(
        group=group,
        strategy=strategy,
        feed=make_feed(context.samples, plan, batch_slices, config, group.device),
        batches=StepBatches(plan, batch_slices),
        buffers=_build_buffers(model, group, plan.batch_slices, config),
        timer=context.timer,
        evaluation=_evaluation(state),
        balance=balance,
        on_skip=context.on_skip,
        batch_slices=batch_slices,
        merges_slices=strategy.merges_slices or config.level is Level.FAST,
        no_loss=torch.zeros((), dtype=torch.float64, device=group.device),
    )


def _plan(context: RunContext, stored_batch_slices: int | None) -> BatchPlan:
    config, samples = context.config, context.samples
    batch_slices = choose_batch_slices(
        config.batch_slices if config.batch_slices is not None else stored_batch_slices,
        promised_ranks=context.process.env.promised_ranks,
        max_ranks=context.process.env.max_ranks,
        world_size=context.process.group.data_size,
        global_batch=config.global_batch,
    )
    return BatchPlan(
        samples=sample_count(samples, config),
        global_batch=config.global_batch,
        batch_slices=batch_slices,
        seed=config.seed,
        epochs=config.epochs,
        max_steps=config.max_steps,
        sequential=is_stream(samples),
        order=context.identity.order,
        blocks=samples.blocks if isinstance(samples, BlockSamples) else None,
        endless=not known_count(samples) and is_stream(samples),
    )


def _build_buffers(model: nn.Module, group: Group, batch_slices: int, config: Config) -> SharedBuffers | None:
    """Build the synchronization of the model's buffers that the options select; None if it has none."""
    if not any(buffer.numel() for buffer in model.buffers()):
        return None
    if config.level is Level.EXACT:
        return TreeBuffers(model, group, batch_slices)
    return (FirstRanksBuffers if config.broadcast_buffers else SharedBuffers)(model, group)


def _build_balancer(context: RunContext, plan: BatchPlan) -> LoadBalancer | None:
    if context.config.balance is BalancerName.STATIC:
        return None
    show_event = context.process.progress.show_event
    return LoadBalancer(
        plan.batch_slices,
        context.process.group,
        context.timer,
        lambda batch_slices: show_event(LoadRebalanced(batch_slices=batch_slices)),
    )


def _apply_layout(config: Config, group: Group) -> ShardedState | None:
    """Apply the layout to the group; None if every rank holds the whole model.

    Raises:
        BadConfig: The layout has more or fewer ranks than the group.
    """
    if config.parallel is None:
        return None
    layout = layout_of(config.parallel, group.world_size)
    group.set_layout(layout)
    if layout.replica == 1:
        return None
    from ddp_trainer.train.mesh.device_mesh import Mesh  # noqa: PLC0415 - a second of imports; on request
    from ddp_trainer.train.mesh.sharded_state import ShardedState  # noqa: PLC0415 - as above

    with group.track_subgroups():
        return ShardedState(Mesh.of(layout, group, config.timeout_seconds), group)


def _shard_model(context: RunContext, sharded: ShardedState, loaded: Collection[str]) -> ShardedState:
    """Cut the model in place before its optimizer is built; weights in ``loaded`` are not initialized.

    Raises:
        BadConfig: The model cannot be cut by this layout.
    """
    model, task, config, mesh, group = context.model, context.task, context.config, sharded.mesh, context.process.group
    layout = mesh.layout
    if layout.pp > 1:
        from ddp_trainer.train.parallel.pp.pipeline_split import split_stages  # noqa: PLC0415 - as above
        from ddp_trainer.train.parallel.pp.pp_state import PipelineState  # noqa: PLC0415 - a second of imports; on request

        return PipelineState(model, split_stages(model, task, config, mesh, group, loaded))
    from ddp_trainer.train.deferred_init.param_broadcast import init_pieces, send_from_first  # noqa: PLC0415 - as above

    deferred = is_deferred(model)
    if not deferred and (layout.tp > 1 or layout.shard == 1):  # fully_shard moves what it cuts first
        model.to(group.device)
    if layout.tp > 1:
        from ddp_trainer.train.parallel.tensor_parallel import apply_tp  # noqa: PLC0415 - as above

        apply_tp(model, task, mesh, group)
    if not deferred:
        send_from_first(model, mesh, group, loaded)
    if layout.shard > 1:
        from ddp_trainer.train.parallel.fsdp import shard  # noqa: PLC0415 - as above

        shard(model, mesh, config, group)
    if deferred:
        materialize(model, group.device, weights_on=torch.device("cpu") if config.fsdp_offload else None)
        init_pieces(model, task, config.seed, mesh, group, loaded)
    return sharded


def _example(context: RunContext) -> Batch:
    if is_stream(context.samples):
        raise BadTask(
            "This rank begins in a step in which it has no samples, and cannot take part in it: they are a stream.",
            hint="Let an epoch of the stream end with a whole --global-batch.",
        )
    return to_device(first_batch(cast("Samples", context.samples)), context.process.group.device)


def _evaluation(state: TrainState) -> Evaluation:
    config, context, kind, on = state.context.config, state.context, Evaluation, state.context.config.evaluate_on
    if state.sharded is not None:
        kind, on = EvenEvaluation, EvaluateOn.ALL
    elif config.level is Level.EXACT:
        kind = TreeEvaluation
    group, skipped = context.process.group, context.on_skip if config.on_bad_sample is OnBadSample.SKIP else None
    metrics, slices = in_training_format(context.task.metrics, config, group.device), state.plan.batch_slices
    most = config.micro_batch
    return kind(context.task, group, metrics, batch_slices=slices, micro_batch=most, on=on, skipped=skipped)
