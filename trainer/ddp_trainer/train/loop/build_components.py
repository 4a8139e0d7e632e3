"""Construction of the components of a run.

:func:`build_state` builds what the process keeps over worker groups (:class:`TrainState`). :func:`build_components`
builds what belongs to one worker group (:class:`GroupComponents`). :class:`~ddp_trainer.train.trainer.Trainer` calls
both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from ddp_trainer.common.enums import PrecisionName
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_rules import check_rollback, layout_of
from ddp_trainer.train.config.options import BalanceName, Level, OnBadSample
from ddp_trainer.train.data.batch_plan import BatchPlan, choose_shards, owned
from ddp_trainer.train.data.batch_reader import is_stream, to_device
from ddp_trainer.train.data.loaders.base import Feed
from ddp_trainer.train.data.loaders.factory import known_count, make_feed, sample_count
from ddp_trainer.train.data.loaders.map_reader import first_batch
from ddp_trainer.train.data.sample_tracker import SampleTracker
from ddp_trainer.train.data.task import Batch, Samples
from ddp_trainer.train.deferred_init.materialize import init_weights, is_deferred, materialize
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.evaluation.evaluate import Evaluation
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_step import Stepper
from ddp_trainer.train.observability.console import Balanced
from ddp_trainer.train.optim.loss_scale import LossScale
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel.comm_timing import measure_waits
from ddp_trainer.train.parallel.factory import build
from ddp_trainer.train.parallel.load_balancer import LoadBalancer
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.transforms.model_transforms import Losses, prepare
from ddp_trainer.train.utils.errors import BadTask

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """State that this process keeps from one worker group to the next, together with the model."""

    plan: BatchPlan
    ledger: SampleTracker
    losses: Losses
    optimization: OptimizerWrapper
    spread: ShardedState | None = None
    """The distributed state, if no rank holds the whole model; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupComponents:
    """Components that train and evaluate in one worker group."""

    strategy: Strategy
    feed: Feed
    stepper: Stepper
    evaluation: Evaluation

    def abandon(self, *, keeps_gradients: bool = False) -> None:
        """Drop the uncommitted step after the group was lost, and close the feed.

        Args:
            keeps_gradients: Keep the gradients of the step, whose vote may still turn out to be committed.
        """
        self.feed.close()
        self.stepper.abandon(keeps_gradients=keeps_gradients)


def build_state(ground: RunContext, stored_shards: int | None, *, loads: bool = False) -> TrainState:
    """Build the state that outlives a worker group.

    Args:
        ground: The context of the run.
        stored_shards: Number of logical shards of the checkpoint or state to resume from; None for a new run.
        loads: The model's own state is loaded afterwards. A distributed model then gets no initial weights. It must
            be equal on all ranks.

    Raises:
        BadConfig: A flag does not fit the task, the group or another flag.
    """
    config, group = ground.config, ground.around.group
    loaded = frozenset(ground.model.state_dict()) if loads and config.spreads else frozenset()
    spread = _lay(config, group)
    plan = _plan(ground, stored_shards)
    check_rollback(config, keeps_checkpoints=config.checkpoint_dir is not None, sequential=plan.sequential)
    if spread is None:
        if is_deferred(ground.model):
            materialize(ground.model, group.device)
            init_weights(ground.model, ground.task, config.seed, loaded)
        ground.model.to(group.device)
    losses = prepare(ground.model, ground.task.losses, config, group, ground.around.progress.alarm)
    if spread is not None:
        spread = _spread_out(ground, spread, loaded)
    loss_scale = LossScale(group.device) if config.precision is PrecisionName.FP16 else None
    return TrainState(
        plan=plan,
        ledger=SampleTracker(plan.samples),
        losses=losses,
        optimization=OptimizerWrapper.build(ground.task, ground.model, config, plan.total_steps, loss_scale, spread),
        spread=spread,
    )


def build_components(ground: RunContext, kept: TrainState) -> GroupComponents:
    """Build the components of the current worker group; all ranks must hold the same state by now.

    Raises:
        BadConfig: A flag does not fit the group or another flag.
        BadTask: The task cannot be evaluated.
    """
    config, group, plan = ground.config, ground.around.group, kept.plan
    layout = Layout() if kept.spread is None else kept.spread.mesh.layout
    strategy = build(
        Parts(
            model=ground.model,
            losses=kept.losses,
            group=group,
            plan=plan,
            config=config,
            spread=kept.spread,
            example=None if kept.spread is None else lambda: _example(ground),
            waits=measure_waits(ground.model, layout, group, ground.phases, ground.around.recorder),
        )
    )
    feed = make_feed(ground.samples, plan, owned(plan.shards, group.data_size, group.data_rank), config, group.device)
    stepper = Stepper(
        plan=plan,
        group=group,
        strategy=strategy,
        optimization=kept.optimization,
        feed=feed,
        ledger=kept.ledger,
        phases=ground.phases,
        guard=ground.guard,
        config=config,
        balance=_balance(ground, plan),
        told=ground.skips,
    )
    return GroupComponents(strategy=strategy, feed=feed, stepper=stepper, evaluation=_evaluation(ground, kept))


def _plan(ground: RunContext, stored_shards: int | None) -> BatchPlan:
    config, samples = ground.config, ground.samples
    shards = choose_shards(
        config.shards if config.shards is not None else stored_shards,
        promised_ranks=ground.around.env.promised_ranks,
        most_ranks=ground.around.env.most_ranks,
        world_size=ground.around.group.data_size,
        global_batch=config.global_batch,
    )
    return BatchPlan(
        samples=sample_count(samples, config),
        global_batch=config.global_batch,
        shards=shards,
        seed=config.seed,
        epochs=config.epochs,
        max_steps=config.max_steps,
        sequential=is_stream(samples),
        endless=not known_count(samples) and is_stream(samples),
    )


def _balance(ground: RunContext, plan: BatchPlan) -> LoadBalancer | None:
    if ground.config.balance is BalanceName.STATIC:
        return None
    tell = ground.around.progress.tell
    return LoadBalancer(plan.shards, ground.around.group, ground.phases, lambda shards: tell(Balanced(shards=shards)))


def _lay(config: Config, group: Group) -> ShardedState | None:
    """Apply the layout to the group; None if every rank holds the whole model.

    Raises:
        BadConfig: The layout has more or fewer ranks than the group.
    """
    if config.parallel is None:
        return None
    layout = layout_of(config.parallel, group.world_size)
    group.lay(layout)
    if layout.replica == 1:
        return None
    from ddp_trainer.train.mesh.device_mesh import Mesh  # noqa: PLC0415 - a second of imports; on request
    from ddp_trainer.train.mesh.sharded_state import ShardedState  # noqa: PLC0415 - as above

    with group.growing():
        return ShardedState(Mesh.of(layout, group, config.timeout_seconds), group)


def _spread_out(ground: RunContext, spread: ShardedState, loaded: Collection[str]) -> ShardedState:
    """Cut the model in place before its optimizer is built; weights in ``loaded`` are not initialized.

    Raises:
        BadConfig: The model cannot be cut by this layout.
    """
    model, task, config, mesh, group = ground.model, ground.task, ground.config, spread.mesh, ground.around.group
    layout = mesh.layout
    if layout.pp > 1:
        from ddp_trainer.train.parallel.pp.pipeline_split import split_stages  # noqa: PLC0415 - as above
        from ddp_trainer.train.parallel.pp.pp_state import PipelineState  # noqa: PLC0415 - a second of imports; on request

        return PipelineState(model, split_stages(model, task, config, mesh, group, loaded))
    from ddp_trainer.train.deferred_init.param_broadcast import init_pieces, send_from_first  # noqa: PLC0415 - as above

    deferred = is_deferred(model)
    if layout.tp > 1 and not deferred:
        model.to(group.device)
    if layout.tp > 1:
        from ddp_trainer.train.parallel.apply_tp import apply_tp  # noqa: PLC0415 - as above

        apply_tp(model, task, mesh, group)
    if not deferred:
        send_from_first(model, mesh, group, loaded)
    if layout.shard > 1:
        from ddp_trainer.train.parallel.fully_shard import shard  # noqa: PLC0415 - as above

        shard(model, mesh, config, group)
    if deferred:
        materialize(model, group.device, weights_on=torch.device("cpu") if config.fsdp_offload else None)
        init_pieces(model, task, config.seed, mesh, group, loaded)
    return spread


def _example(ground: RunContext) -> Batch:
    if is_stream(ground.samples):
        raise BadTask(
            "This rank begins in a step in which it has no samples, and cannot take part in it: they are a stream.",
            hint="Let an epoch of the stream end with a whole --global-batch.",
        )
    return to_device(first_batch(cast("Samples", ground.samples)), ground.around.group.device)


def _evaluation(ground: RunContext, kept: TrainState) -> Evaluation:
    config, task, group, plan = ground.config, ground.task, ground.around.group, kept.plan
    skipped = ground.skips if config.on_bad_sample is OnBadSample.SKIP else None
    if kept.spread is not None:
        from ddp_trainer.train.evaluation.sharded_evaluation import EvenEvaluation  # noqa: PLC0415 - on request

        return EvenEvaluation(task, group, skipped=skipped)
    if config.level is not Level.EXACT:
        return Evaluation(task, group, on=config.evaluate_on, skipped=skipped)
    from ddp_trainer.train.evaluation.exact_evaluation import TreeEvaluation  # noqa: PLC0415 - few runs need it

    return TreeEvaluation(task, group, plan.shards, on=config.evaluate_on, skipped=skipped)
