"""Notation of a parallel layout in a job file."""

from __future__ import annotations

from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.parallel_dims import LayoutError
from kubectl_ddp.values.quantity import BadValue


def parse_layouts(text: str) -> LayoutRange:
    """Parse ``replicate=2,shard=4,tp=2,pp=2``, with sizes as N or MIN:MAX. Raises BadValue."""
    try:
        return LayoutRange.parse(text)
    except LayoutError as error:
        raise BadValue(str(error)) from None
