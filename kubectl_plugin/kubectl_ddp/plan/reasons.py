"""One-sentence explanation of a layout's place in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubectl_ddp.plan.formatting import format_bytes, percent
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.ranking import Estimate
from kubectl_ddp.plan.timing import BUBBLE, IMBALANCE, RECOMPUTATION
from kubectl_ddp.plan.traffic import EXCHANGES

_WORTH_SAYING: Final = 0.03
_LOSSES: Final[Mapping[str, str]] = {
    BUBBLE: "The pipeline idles for {share} of the step.",
    RECOMPUTATION: "Computing activations again takes {share} of the step.",
    IMBALANCE: "Samples or layers do not divide evenly, which takes {share} of the step.",
    **{name: exchange.loss for name, exchange in EXCHANGES.items()},
}


def reason(way: Estimate, machine: Machine) -> str:
    """Return the largest loss of a layout that fits, or the excess memory of one that does not."""
    if not way.fits:
        need, have = format_bytes(way.memory.total), format_bytes(machine.available_bytes)
        return f"Takes {need} where {have} can be used, the most of it for {way.memory.largest}."
    timing = way.timing
    worst = max(timing.lost_seconds, key=lambda name: timing.lost_seconds[name])
    share = timing.lost_seconds[worst] / timing.step_seconds
    if share >= _WORTH_SAYING:
        return _LOSSES[worst].format(share=percent(share))
    return "Its traffic hides behind computing." if way.traffic else "It is one GPU without communication."
