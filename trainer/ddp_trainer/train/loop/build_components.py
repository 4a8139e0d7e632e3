"""The parts of a run that take and evaluate steps: some are kept for good, the others belong to one group of ranks."""

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
    """What this process keeps from one group of ranks to the next: all of the state is in here and in the model."""

    plan: BatchPlan
    ledger: SampleTracker
    losses: Losses
    optimization: OptimizerWrapper
    spread: ShardedState | None = None
    """Of a model that no rank holds whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupComponents:
    """What a run steps and evaluates with in one group."""

    strategy: Strategy
    feed: Feed
    stepper: Stepper
    evaluation: Evaluation

    def abandon(self, *, keeps_gradients: bool = False) -> None:
        """The group is gone in the middle of whatever it was about: nothing stays of a step that did not count."""
        self.feed.close()
        self.stepper.abandon(keeps_gradients=keeps_gradients)


def build_state(ground: RunContext, stored_shards: int | None, *, loads: bool = False) -> TrainState:
    """Build what stays, once it is known how a batch is cut: by ``stored_shards`` where there is a state to go on from.

    ``loads``, the same on every rank: all that is in the model's own state is about to be loaded. Of a model that is
    spread, no numbers are made or sent for that.

    Raises:
        BadConfig: a flag does not go with the task, the group or another flag.
    """
    config, group = ground.config, ground.around.group
    loaded = frozenset(ground.model.state_dict()) if loads and config.spreads else frozenset()
    spread = _lay(config, group)
    plan = _plan(ground, stored_shards)
    check_rollback(config, keeps_checkpoints=config.checkpoint_dir is not None, sequential=plan.sequential)
    if spread is None:
        if ground.recipes:
            from ddp_trainer.train.deferred_init.materialize import fill_here  # noqa: PLC0415 - of ranges of layouts alone

            fill_here(ground.model, ground.recipes, group.device, loaded)
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
    """Build the rest, for the group that this rank is in; the state of all ranks must be the same by now.

    Raises:
        BadConfig: a flag does not go with the group or another flag.
        BadTask: the task cannot be evaluated as it is.
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
    """Take this rank's place in the layout; None where every rank of it holds the whole model.

    Raises:
        BadConfig: the layout has more ranks than the group, or fewer.
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
    """Cut the model in place, before its optimizer is built; what is about to be ``loaded`` gets no numbers.

    Raises:
        BadConfig: the model cannot be cut so.
    """
    model, task, config, mesh, group = ground.model, ground.task, ground.config, spread.mesh, ground.around.group
    layout = mesh.layout
    from ddp_trainer.train.deferred_init.materialize import agree, empty_out, fill, send_buffers  # noqa: PLC0415 - as in _lay
    from ddp_trainer.train.deferred_init.param_broadcast import send_from_first  # noqa: PLC0415 - as above

    recipes = agree(model, ground.recipes, group, loaded)
    if layout.pp > 1:
        from ddp_trainer.train.parallel.pp.pipeline_split import split_stages  # noqa: PLC0415 - as above
        from ddp_trainer.train.parallel.pp.pp_state import PipelineState  # noqa: PLC0415 - a second of imports; on request

        return PipelineState(model, split_stages(model, task, config, mesh, group, recipes, loaded))
    numbers = empty_out(model, recipes, loaded) if recipes else {}
    if numbers:
        send_buffers(model, mesh, group, loaded)
    elif layout.tp > 1:
        model.to(group.device)
    if layout.tp > 1:
        from ddp_trainer.train.parallel.apply_tp import apply_tp  # noqa: PLC0415 - as above

        apply_tp(model, task, mesh, group)
    if not numbers:
        send_from_first(model, mesh, group, loaded)
    if layout.shard > 1:
        from ddp_trainer.train.parallel.fully_shard import shard  # noqa: PLC0415 - as above

        shard(model, mesh, config, group)
    if numbers:
        fill(model, numbers, mesh, group, torch.device("cpu") if config.fsdp_offload else group.device)
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
