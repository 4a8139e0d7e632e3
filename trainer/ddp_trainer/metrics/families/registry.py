"""Table of all metric families, as data.

The layout of the boards, the exposition, ``docs/metrics.md`` and the tests follow from :data:`FAMILIES`. Names end in
their base unit, names of counters in ``_total``. A value of which only the present state matters is a gauge; a value of
which a rate may be needed is a counter. Label sets are closed and all their series exist from the start, because
Prometheus' ``increase`` ignores the first sample of a series.
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
    """Return the families with these sources, in the order of the table."""
    return (family for family in FAMILIES if family.source in sources)
