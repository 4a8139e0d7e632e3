"""Output of a plan as tables and as the versioned JSON of ``-o json``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, Final

from kubectl_ddp.plan.formatting import count, format_bytes, percent, seconds
from kubectl_ddp.plan.ranking import Estimate, Plan
from kubectl_ddp.plan.reasons import reason
from kubectl_ddp.plan.work import Work
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import NOTHING, Table

SHOWN: Final = 8
"""Number of rows per kind of layout in tables that are not complete."""

_MEMORY: Final = ("weights", "gradients", "optimizer", "activations")
_SENT: Final = "SENT PER STEP"
_WIDE: Final = frozenset({*(name.upper() for name in _MEMORY), _SENT, "MFU", "BUBBLE"})
"""Columns that only a wide table has."""


def plan_summary(found: Plan) -> str:
    """Return a summary of the model, the step and the machine."""
    shape, work = found.shape, found.work
    positions = f"{shape.window} positions" if shape.window else "rotated positions"
    return (
        f"{count(shape.parameters)} parameters ({shape.layers} layers, width {shape.hidden}, {shape.heads} heads, "
        f"vocabulary {shape.vocabulary}, {positions}), {work.global_batch} samples of {work.sequence} tokens a step, "
        f"{work.precision}, {work.optimizer}, on {found.machine.describe()} with "
        f"{format_bytes(found.machine.available_bytes)} each to use."
    )


def tables(found: Plan, most: int | None = SHOWN, *, wide: bool = False) -> Iterator[Table]:
    """Yield tables of the layouts that fit and that do not.

    Args:
        found: The plan.
        most: Maximum number of rows for each kind of layout (None for all).
        wide: True for all columns: also the parts of the memory, the traffic, MFU and bubble.
    """
    if found.fitting:
        columns = [_columns(way, found) for way in found.fitting[:most]]
        header = [name for name in columns[0] if wide or name not in _WIDE]
        yield Table.of_texts(header, ([row[name] for name in header] for row in columns))
    misses = [
        *((str(each.way.choice.layout), each.violation.message) for each in found.refused[:most]),
        *((str(way.choice.layout), reason(way, found.machine)) for way in found.too_large[:most]),
        *((str(each.layout), each.reason) for each in found.impossible[:most]),
    ]
    if misses:
        yield Table.of_texts(("LAYOUT", "DOES NOT FIT BECAUSE"), misses)


def left_out(found: Plan, most: int = SHOWN) -> int:
    """Return the number of layouts that :func:`tables` leaves out."""
    return sum(max(0, len(part) - most) for part in (found.fitting, found.refused, found.too_large, found.impossible))


def _columns(way: Estimate, found: Plan) -> dict[str, str]:
    """Return the row of a layout: title of a column → text."""
    choice, timing = way.choice, way.timing
    return {
        "LAYOUT": str(choice.layout),
        "MICRO-BATCH": f"{choice.micro_batch} x {choice.passes}",
        "RECOMPUTES": choice.recomputation.flag_value or "no",
        "MEMORY": format_bytes(way.memory.total),
        **{name.upper(): format_bytes(getattr(way.memory, name)) for name in _MEMORY},
        _SENT: _sent(way) or NOTHING,
        "STEP": seconds(timing.step_seconds),
        "MFU": percent(timing.mfu),
        "BUBBLE": percent(timing.bubble),
        "WHY": reason(way, found.machine),
    }


def _sent(way: Estimate) -> str:
    """Return the bytes sent per rank, by dimension."""
    sums: dict[str, float] = {}
    for each in way.traffic:
        sums[each.dimension] = sums.get(each.dimension, 0.0) + each.sent_bytes
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sums.items())


def plan_to_dict(found: Plan) -> dict[str, Any]:
    """Return the complete plan as a JSON object."""
    machine = found.machine
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "parameters": found.shape.parameters,
        "model": asdict(found.shape),
        "work": _work(found.work),
        "machine": {
            "gpu": machine.gpu.name,
            "nodes": machine.nodes,
            "gpus_per_node": machine.per_node,
            "usable_bytes": machine.available_bytes,
            "near_bytes_per_second": machine.gpu.near_bytes,
            "far_bytes_per_second": machine.far_bytes,
        },
        "best": str(found.fitting[0].choice.layout) if found.fitting else None,
        "fitting": [_estimate_to_dict(way, found) for way in found.fitting],
        "too_large": [_estimate_to_dict(way, found) for way in found.too_large],
        "refused": [
            {"layout": str(each.way.choice.layout), "reason": each.violation.message} for each in found.refused
        ],
        "impossible": [{"layout": str(each.layout), "reason": each.reason} for each in found.impossible],
    }


def _work(work: Work) -> dict[str, Any]:
    values = {each.name: getattr(work, each.name) for each in fields(work) if each.name != "recomputation"}
    again = work.recomputation
    return {
        **{name: str(value) if isinstance(value, str) else value for name, value in values.items()},
        "is_checkpointed": None if again is None else bool(again.every),
        "recompute": None if again is None else again.flag_value or None,
    }


def _estimate_to_dict(way: Estimate, found: Plan) -> dict[str, Any]:
    choice, memory, timing = way.choice, way.memory, way.timing
    return {
        "layout": str(choice.layout),
        "micro_batch": choice.micro_batch,
        "micro_batches": choice.passes,
        "activation_checkpointing": bool(choice.recomputation.every),
        "recompute": choice.recomputation.flag_value or None,
        "memory": {
            "total_bytes": round(memory.total),
            **{f"{name}_bytes": round(getattr(memory, name)) for name in _MEMORY},
            "moment": memory.moment,
            "stage": memory.stage,
        },
        "traffic": [
            {
                "dimension": each.dimension,
                "operation": each.operation,
                "sent_bytes": round(each.sent_bytes),
                "link_bytes_per_second": each.link_bytes,
                "seconds": each.seconds,
            }
            for each in way.traffic
        ],
        "step_seconds": timing.step_seconds,
        "lost_seconds": dict(timing.lost_seconds),
        "bubble": timing.bubble,
        "mfu": timing.mfu,
        "hfu": timing.hfu,
        "tokens_per_second": timing.tokens_per_second,
        "reason": reason(way, found.machine),
    }
