"""Implementation of ``plan``: model, step and machines from flags and job file, and output of the plan."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import click

from ddp_trainer.common.enums import OptimizerName
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.job_options import JobRequest, read_job
from kubectl_ddp.cli.internal.output import is_document, print_output, style
from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.constraints import make_constraint
from kubectl_ddp.plan.formatting import count
from kubectl_ddp.plan.job_args import parse_job_args
from kubectl_ddp.plan.known import known, parse_count, shape_of
from kubectl_ddp.plan.machine import GIGA, RESERVED_BYTES, Machine, gpu_of
from kubectl_ddp.plan.nothing import require_feasible_plan
from kubectl_ddp.plan.ranking import ChoiceCheck, Plan, takes_all
from kubectl_ddp.plan.ranking import plan as planned
from kubectl_ddp.plan.recomputation import ALL, NOTHING, Recomputation
from kubectl_ddp.plan.reference_model import runs_the_trainer
from kubectl_ddp.plan.report import SHOWN, left_out, plan_summary, plan_to_dict, tables
from kubectl_ddp.plan.shape import MOST, Shape
from kubectl_ddp.plan.work import Precision, Work
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.quantity import BadValue, Memory

GPU: Final = "H100"
PER_NODE: Final = 8
SEQUENCE: Final = 2048
VOCABULARY: Final = 50257
SAMPLES_PER_GPU: Final = 8
MOST_GPUS: Final = 16384
_MODEL: Final = "Give --params 7B, --model llama3-8b, --layers with --hidden and --heads, or a job file with -f."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Values of the command's flags; ``None`` if not given."""

    job_file: str | None = None
    params: str | None = None
    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    activation_checkpointing: str | None = None
    recompute: str | None = None
    gpu_type: str | None = None
    gpus: int | None = None
    nnodes: int | None = None
    network: float | None = None
    reserve: str | None = None
    efficiency: float | None = None


def print_plan(options: Options, wanted: PlanOptions, *, is_complete: bool) -> None:
    """Print the plan. Raises UsageError for invalid or rejected values, PreflightFailed if no layout fits."""
    found = compute_plan(options, wanted)
    if is_document(options.output):
        print_output(plan_to_dict(found), str(options.output))
    else:
        _show(options, found, is_complete=is_complete)
    require_feasible_plan(found)


def _show(options: Options, found: Plan, *, is_complete: bool) -> None:
    look_of = style(options)
    shown = tables(found, None if is_complete else SHOWN, wide=options.output == "wide")
    click.echo("\n\n".join([plan_summary(found), *(table.render(look_of) for table in shown)]))
    if not is_complete and (more := left_out(found)):
        options.print_message(f"{more} more layouts are shown with --all.")


def compute_plan(options: Options, wanted: PlanOptions) -> Plan:
    """Compute the plan for the flags and the job file. Raises UsageError or NotFound."""
    job = None if wanted.job_file is None else _job(options, wanted.job_file)
    machine = _machine(wanted, job)
    by_flags = _shape(wanted)
    check_choice: ChoiceCheck = takes_all
    if by_flags is not None:
        named, work = by_flags, None
    elif job is not None:
        named, work = parse_job_args(job.args)
        check_choice = make_constraint(job.args) if runs_the_trainer(job.program) else takes_all
    else:
        raise UsageError("No model is named.", hint=_MODEL)
    shape = _changed(named, wanted)
    if shape.window > named.window:
        options.print_message(
            f"--seq {shape.window} is more than the model's {named.window} positions: "
            f"they are taken to be {shape.window}, with "
            f"{count(shape.position_embedding_params - named.position_embedding_params)} parameters more."
        )
    default = work or Work(
        sequence=min(SEQUENCE, shape.window or SEQUENCE), global_batch=SAMPLES_PER_GPU * machine.world
    )
    return planned(shape, _work(wanted, default), machine, check_choice)


def _job(options: Options, path: str) -> JobSpec:
    request = JobRequest(script=None, words=None, file=path, assignments=(), shorthand=None, flags={})
    return read_job(request, options, plans=False).spec


def _shape(wanted: PlanOptions) -> Shape | None:
    """Return the model that the flags describe; None if they describe none."""
    _validate_sizes(wanted)
    axes = {"--layers": wanted.layers, "--hidden": wanted.hidden, "--heads": wanted.heads}
    axis = next((flag for flag, value in axes.items() if value is not None), None)
    ways = {"--params": wanted.params, "--model": wanted.model, axis or "--layers": axis}
    named = [flag for flag, value in ways.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other.", hint="Keep one.")
    if wanted.params is not None:
        return _of_params(wanted.params, wanted.seq)
    if wanted.model is not None:
        return known(wanted.model)
    if axis is None:
        return None
    if wanted.layers is None or wanted.hidden is None or wanted.heads is None:
        raise UsageError("A shape needs --layers, --hidden and --heads.", hint="Give all three, or --params.")
    return Shape(
        layers=wanted.layers,
        hidden=wanted.hidden,
        heads=wanted.heads,
        vocabulary=VOCABULARY,
        window=SEQUENCE if wanted.seq is None else wanted.seq,
    )


def _validate_sizes(wanted: PlanOptions) -> None:
    sizes = {
        "--layers": wanted.layers,
        "--hidden": wanted.hidden,
        "--heads": wanted.heads,
        "--kv-heads": wanted.kv_heads,
        "--ffn": wanted.ffn,
        "--vocab": wanted.vocab,
    }
    for flag, value in sizes.items():
        if value is not None and not 1 <= value <= MOST:
            raise UsageError(f"{flag} is {value}.", hint=f"Give a whole number from 1 to {MOST}.")


def _of_params(params: str, sequence: int | None) -> Shape:
    """Return a model of about ``params`` parameters. Beyond the usual sequence length, it has rotary positions."""
    shape = shape_of(parse_count(params), window=SEQUENCE)
    return replace(shape, window=0) if sequence is not None and sequence > SEQUENCE else shape


def _changed(shape: Shape, wanted: PlanOptions) -> Shape:
    """Apply the remaining flags to a shape."""
    return replace(
        shape,
        vocabulary=shape.vocabulary if wanted.vocab is None else wanted.vocab,
        kv_heads=shape.kv_heads if wanted.kv_heads is None else wanted.kv_heads,
        feed_forward=shape.feed_forward if wanted.ffn is None else wanted.ffn,
        window=max(shape.window, wanted.seq or 0) if shape.window else 0,
    )


def _work(wanted: PlanOptions, base: Work) -> Work:
    """Apply the flags to a step."""
    changes = {
        "sequence": wanted.seq,
        "global_batch": wanted.global_batch,
        "micro_batch": wanted.micro_batch,
        "precision": None if wanted.precision is None else Precision(wanted.precision),
        "optimizer": None if wanted.optimizer is None else OptimizerName(wanted.optimizer),
        "efficiency": wanted.efficiency,
    }
    values = {each.name: getattr(base, each.name) for each in fields(base)}
    values |= {name: value for name, value in changes.items() if value is not None}
    if wanted.activation_checkpointing is not None or wanted.recompute is not None:
        values["recomputation"] = _recomputation(wanted)
    return Work(**values)


def _recomputation(wanted: PlanOptions) -> Recomputation | None:
    """Return the recomputation that the flags select; None if the plan chooses it."""
    switch = wanted.activation_checkpointing
    if wanted.recompute is None:
        return {"on": ALL, "off": NOTHING}.get(switch or "")
    if switch == "off":
        raise UsageError(
            f"--recompute {wanted.recompute} and --activation-checkpointing off exclude each other.", hint="Keep one."
        )
    return Recomputation.parse(wanted.recompute)


def _machine(wanted: PlanOptions, job: JobSpec | None) -> Machine:
    nodes = wanted.nnodes if wanted.nnodes is not None else job.nnodes.maximum if job else 1
    per_node = wanted.gpus if wanted.gpus is not None else (job.gpus or job.nproc) if job else PER_NODE
    for flag, value in (("--nnodes", nodes), ("--gpus", per_node)):
        if value < 1:
            raise UsageError(f"{flag} is {value}.", hint="Give 1 or more.")
    if nodes * per_node > MOST_GPUS:
        raise UsageError(
            f"--nnodes {nodes} with --gpus {per_node} are {nodes * per_node} GPUs.",
            hint=f"Plan for {MOST_GPUS} at most.",
        )
    of_job = (job.gpu_type if job else None) or GPU
    gpu = gpu_of(of_job if wanted.gpu_type is None else wanted.gpu_type)
    reserved = RESERVED_BYTES if wanted.reserve is None else _reserved(wanted.reserve)
    if reserved >= gpu.memory_bytes:
        raise UsageError(f"--reserve {wanted.reserve} leaves nothing of a {gpu.name}.", hint="Give a smaller one.")
    if wanted.network is not None and not 0 < wanted.network < float("inf"):
        raise UsageError(f"--network is {wanted.network}.", hint="Give gigabits per second, as in 400.")
    far = gpu.far_bytes if wanted.network is None else wanted.network / 8 * GIGA
    return Machine(gpu=gpu, nodes=nodes, per_node=per_node, far_bytes=far, reserved_bytes=reserved)


def _reserved(text: str) -> int:
    if text == "0":
        return 0
    try:
        return Memory.parse(text).size_bytes
    except BadValue as error:
        raise UsageError(f"--reserve: {error.message}.", hint=error.hint) from None
