"""The families that somebody asks for by name, as in ``/metrics?name[]=ddp_step&name[]=ddp_loss``.

Prometheus' client libraries have it so. A list of many jobs reads half of what a pod tells, and asks for no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from ddp_trainer.common.constants import FAMILY_QUERY

MOST_FIELDS: Final = 128
"""Fields in a query: to take more of them apart would cost more than the page."""


def families_in(query: str) -> frozenset[str]:
    """The names in what follows the question mark; none where everything is meant.

    Raises:
        ValueError: If there are more than :data:`MOST_FIELDS`.

    >>> sorted(families_in("name[]=ddp_step&name%5B%5D=ddp_loss&debug=1")), families_in("")
    (['ddp_loss', 'ddp_step'], frozenset())
    """
    return frozenset(parse_qs(query, max_num_fields=MOST_FIELDS).get(FAMILY_QUERY, ()))


@dataclass(frozen=True, slots=True)
class Collected(Collector):
    """What another collector has told once."""

    families: tuple[Exposed, ...]

    def collect(self) -> Iterator[Exposed]:
        """The families, without another look at anything."""
        return iter(self.families)


@dataclass(frozen=True, slots=True)
class Selection(Collector):
    """What another collector tells of these families, or, by their own names, of these samples."""

    everything: Collector
    names: Collection[str]

    def collect(self) -> Iterator[Exposed]:
        """Those of the families that are asked for; nothing for a name that nobody knows."""
        for family in self.everything.collect():
            samples = [each for each in family.samples if each.name in self.names or family.name in self.names]
            if samples:
                chosen = Exposed(family.name, family.documentation, family.type, family.unit)
                chosen.samples = samples
                yield chosen
