"""Every metric family, as data.

The boards' layout, the exposition, ``docs/metrics.md`` and the tests all follow from this table. Names end in their
base unit, counters in ``_total``; what one only wants to know now is a gauge, whatever a ratio could be wanted of is a
counter. Label sets are closed, and all of their series exist from the start, because Prometheus' ``increase`` does not
see the first sample of a series.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddp_trainer.metrics.families.family import Family, Source
from ddp_trainer.metrics.families.pod_families import AGENT, AGGREGATOR
from ddp_trainer.metrics.families.rank_families import (
    ACCOUNT,
    CHECKPOINTS,
    COLLECTIVE_FAILURES,
    COLLECTIVES,
    DRIVER,
    EVERY_STEP,
    GPU,
    HOST,
    PROCESS,
    PROGRESS,
    WORK,
)

FAMILIES: Final = (
    (EVERY_STEP + PROGRESS + WORK + HOST + GPU + DRIVER)
    + (COLLECTIVES + COLLECTIVE_FAILURES + ACCOUNT + CHECKPOINTS)
    + (PROCESS + AGENT + AGGREGATOR)
)


def families_of(*sources: Source) -> Iterable[Family]:
    """The families that come from these sources, in the order of the table."""
    return (family for family in FAMILIES if family.source in sources)
