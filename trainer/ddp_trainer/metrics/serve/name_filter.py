"""Selection of families by name, as in ``/metrics?name[]=ddp_step&name[]=ddp_loss``.

Prometheus' client libraries use the same query. A list of many jobs reads half of a pod's families this way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from ddp_trainer.common.constants import FAMILY_QUERY

MOST_FIELDS: Final = 128
"""Most fields in a query: parsing more would cost more than the page."""


def families_in(query: str) -> frozenset[str]:
    """Return the family names in a query string; empty for all families.

    Raises:
        ValueError: The query has more than :data:`MOST_FIELDS` fields.

    >>> sorted(families_in("name[]=ddp_step&name%5B%5D=ddp_loss&debug=1")), families_in("")
    (['ddp_loss', 'ddp_step'], frozenset())
    """
    return frozenset(parse_qs(query, max_num_fields=MOST_FIELDS).get(FAMILY_QUERY, ()))


@dataclass(frozen=True, slots=True)
class Selection(Collector):
    """Families that were collected before, selected by names of families or of single samples."""

    families: Sequence[Exposed]
    names: Collection[str]
    """Names to select; empty for all families."""

    def collect(self) -> Iterator[Exposed]:
        """Yield the selected families. An unknown name selects nothing."""
        if not self.names:
            yield from self.families
            return
        for family in self.families:
            samples = [each for each in family.samples if each.name in self.names or family.name in self.names]
            if samples:
                chosen = Exposed(family.name, family.documentation, family.type, family.unit)
                chosen.samples = samples
                yield chosen
