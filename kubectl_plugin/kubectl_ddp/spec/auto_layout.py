"""``--parallel auto``: choice of the best planned layout for the job's GPT on its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.errors import PreflightFailed, UsageError
from kubectl_ddp.plan.constraints import make_constraint
from kubectl_ddp.plan.formatting import format_bytes, seconds
from kubectl_ddp.plan.job_args import MICRO_BATCH, UnknownModel, parse_job_args
from kubectl_ddp.plan.machine import RESERVED_BYTES, Machine, gpu_of
from kubectl_ddp.plan.nothing import require_feasible_plan
from kubectl_ddp.plan.ranking import Estimate, Plan, plan
from kubectl_ddp.plan.reasons import reason
from kubectl_ddp.plan.recomputation import NOTHING
from kubectl_ddp.plan.reference_model import (
    SCHEDULE,
    ReferenceModel,
    last_flag_value,
    reference_model,
    runs_the_trainer,
)
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work
from kubectl_ddp.spec.fields import PROGRAM_KEYS
from kubectl_ddp.spec.layout import layouts_by_nodes
from kubectl_ddp.spec.serialization import make_program
from kubectl_ddp.values.node_requirements import GPU_PRODUCT
from kubectl_ddp.values.quantity import Nodes

YOURSELF: Final = "Name a layout, as in --parallel shard=8; 'kubectl ddp plan' compares them for any model and GPU."


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """Layout chosen by a plan."""

    layouts: LayoutRange
    args: tuple[str, ...]
    """Additional arguments of the program that the layout needs to fit or to be fast."""
    why: str
    """Layout and reasons in one line."""


def plan_layout(values: Mapping[str, Any]) -> PlannedLayout:
    """Return the best layout for the values of a job, by dotted key.

    Raises:
        UsageError: If the plan lacks information, or the job's options conflict with every layout.
        PreflightFailed: If no layout fits.
    """
    args = tuple(values.get("args", ()))
    model = _model(values, args)
    machine = _machine(values)
    shape, work = _parse_workload(args)
    found = plan(shape, work, machine, make_constraint(args))
    if not found.fitting and work.recomputation == NOTHING:
        found = plan(shape, replace(work, recomputation=None), machine, found.check_choice)
    require_feasible_plan(found)
    for way, layouts in _elastic(found, values["nnodes"], values["nproc"]):
        if model.batch_slices is not None and layouts.largest.data_size > model.batch_slices:
            continue  # some ranks would have no slice to learn from
        if not any(_layout_violations(model, layouts, way, values)):
            more = _chosen_flags(way, work, args)
            return PlannedLayout(layouts, more, _why(way, layouts, more, found))
    raise PreflightFailed(
        f"None of the {len(found.fitting)} layouts that fit {machine.describe()} keeps its replicas whole with "
        f"nnodes {values['nnodes']}, and can be had by the model.",
        hint=f"Fix nnodes. {YOURSELF}",
    )


def _model(values: Mapping[str, Any], args: Sequence[str]) -> ReferenceModel:
    key = next(key for key in PROGRAM_KEYS if key in values)
    program = make_program(key, values[key])
    if not runs_the_trainer(program):
        raise _unknown("the job does not run the reference trainer, so its model is unknown")
    if last_flag_value(args, "--parallel") is not None:
        raise UsageError("The job has --parallel auto, and its program also has --parallel.", hint="Keep one.")
    if (schedule := last_flag_value(args, "--pipeline-schedule") or SCHEDULE) != SCHEDULE:
        raise _unknown(f"a plan counts by the schedule {SCHEDULE}, and the job has --pipeline-schedule {schedule}")
    if (model := reference_model(program, args)) is None:
        _parse_workload(args)  # this function has the messages for most invalid models
        raise _unknown("the trainer will refuse the job's words about its model or its batch")
    return model


def _parse_workload(args: Sequence[str]) -> tuple[Shape, Work]:
    try:
        return parse_job_args(args)
    except UnknownModel as error:  # its hint is about the command plan
        raise UsageError(error.message, hint=YOURSELF) from None


def _machine(values: Mapping[str, Any]) -> Machine:
    if "mig" in values or not values["gpus"]:
        what = "slices of GPUs" if "mig" in values else "no GPUs"
        raise _unknown(f"the job requests {what}")
    product = values.get("gpuType") or values.get(f"nodeSelector.{GPU_PRODUCT}")
    if product is None:
        raise UsageError(
            "--parallel auto needs the type of GPU, and the job does not name one.",
            hint=f"Give --gpu-type, as in NVIDIA-H100-80GB-HBM3. {YOURSELF}",
        )
    try:
        gpu = gpu_of(product)
    except UsageError as error:
        raise UsageError(error.message, hint=f"{error.hint} {YOURSELF}") from None
    return Machine(
        gpu=gpu,
        nodes=values["nnodes"].maximum,
        per_node=values["nproc"],
        far_bytes=gpu.far_bytes,
        reserved_bytes=RESERVED_BYTES,
    )


def _unknown(what: str) -> UsageError:
    return UsageError(f"--parallel auto plans for the GPT of our trainer on whole GPUs, and {what}.", hint=YOURSELF)


def _elastic(found: Plan, nodes: Nodes, nproc: int) -> Iterator[tuple[Estimate, LayoutRange]]:
    """Yield the fitting layouts with their replicas at the minimum of nodes; those without whole replicas are left out.

    The memory of a replica stays the same, since passes have the same number of samples at any size.
    """
    fewest = nodes.minimum * nproc
    for way in found.fitting:
        layout = way.choice.layout
        if fewest % layout.replica == 0:
            yield way, LayoutRange(replace(layout, replicate=fewest // layout.replica), layout)


def _layout_violations(
    model: ReferenceModel, layouts: LayoutRange, way: Estimate, values: Mapping[str, Any]
) -> Iterator[object]:
    """Yield the reasons why the trainer would refuse the layout, by the job's own rules."""
    cut = replace(model, micro_batch=way.choice.micro_batch)
    nodes, nproc = values["nnodes"], values["nproc"]
    for layout in layouts_by_nodes(layouts, nodes, nproc).values():
        yield from cut.layout_violations(layout, nodes.maximum * nproc)


def _chosen_flags(way: Estimate, work: Work, args: Sequence[str]) -> tuple[str, ...]:
    """Return the flags that the plan chose and the job did not set."""
    micro_batch = () if last_flag_value(args, MICRO_BATCH) else (MICRO_BATCH, str(way.choice.micro_batch))
    again = way.choice.recomputation
    return (*micro_batch, *(() if again == work.recomputation else again.flags))


def _why(way: Estimate, layouts: LayoutRange, more: Sequence[str], found: Plan) -> str:
    layout: Layout = way.choice.layout
    shape = str(layouts) if layouts.fixed else f"{layouts}, {layout} with all nodes"
    others = len(found.fitting)
    among = f"the shortest step of {others} layouts that fit" if others > 1 else "the one layout that fits"
    adds = f" and {' '.join(more)}" if more else ""
    return (
        f"parallel auto is {shape}{adds}: {among} {found.machine.describe()}, "
        f"about {seconds(way.timing.step_seconds)} and "
        f"{format_bytes(way.memory.total)} of each GPU. {reason(way, found.machine)}"
    )
