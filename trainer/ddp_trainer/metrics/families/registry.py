"""Table of all metric families, as data.

The layout of the boards, the exposition, ``docs/metrics.md`` and the tests follow from :data:`FAMILIES`. Names end in
their base unit, names of counters in ``_total``. A value of which only the present state matters is a gauge; a value of
which a rate may be needed is a counter. Label sets are closed and all their series exist from the start, because
Prometheus' ``increase`` ignores the first sample of a series. The exception is ``ddp_user_value``, a gauge whose names
come from the script, at most 32 per rank.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.metrics.families.pod_families import PODS
from ddp_trainer.metrics.families.rank_families import RANKS

FAMILIES: Final = (*RANKS, *PODS)
