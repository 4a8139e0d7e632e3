"""Range of layouts that a job allows: :class:`LayoutRange`, written ``replicate=1:4,shard=2``.

The plugin checks it before a job is sent, and the launcher and every rank choose the same layout from it. Standard
library only.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from ddp_trainer.common.parallel_dims import (
    BATCH_NAMES,
    DIMENSION_NAMES,
    WRITTEN,
    Layout,
    LayoutError,
    format_sizes,
    join_names,
    parse_dim_sizes,
)

MOST_REPLICAS: Final = 4096
"""Most replica shapes that a range may allow, so that choosing among them takes little time."""


@dataclass(frozen=True, slots=True)
class LayoutRange:
    """Range of layouts that a job allows. Each worker group uses the layout of the range that fits its ranks."""

    smallest: Layout
    """Layout with the smallest size of each dimension."""
    largest: Layout
    """Layout with the largest size of each dimension."""

    def __post_init__(self) -> None:
        for name in WRITTEN:
            least, most = getattr(self.smallest, name), getattr(self.largest, name)
            if least > most:
                raise LayoutError(f"{name}={least}:{most} begins above its end; write {name}={most}:{least}")
        others = WRITTEN[1:]
        kinds = math.prod(self.size_ranges[name][1] - self.size_ranges[name][0] + 1 for name in others)
        if kinds > MOST_REPLICAS:
            raise LayoutError(f"{self} allows {kinds} kinds of replica; narrow {join_names(others)} to {MOST_REPLICAS}")

    @classmethod
    def parse(cls, text: str) -> LayoutRange:
        """Return the range of layouts that a text describes; a fixed layout is a range of one.

        >>> str(LayoutRange.parse("replicate=1:4,shard=2").largest)
        'replicate=4,shard=2'
        >>> LayoutRange.parse("ddp=4")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: 'ddp' is not a dimension of a layout; use replicate, shard, ...

        Raises:
            LayoutError: If ``text`` is not a range of layouts.
        """
        sizes = parse_dim_sizes(text)
        return cls(
            Layout(**{name: least for name, (least, _) in sizes.items()}),
            Layout(**{name: most for name, (_, most) in sizes.items()}),
        )

    @classmethod
    def of(cls, layout: Layout) -> LayoutRange:
        """Return the range that has only this layout."""
        return cls(layout, layout)

    def __str__(self) -> str:
        """Return the canonical text.

        >>> str(LayoutRange.parse("tp=1, shard=2:4, replicate=2:2"))
        'replicate=2,shard=2:4'
        """
        spans = self.size_ranges.items()
        return format_sizes({name: str(most) if least == most else f"{least}:{most}" for name, (least, most) in spans})

    @property
    def size_ranges(self) -> Mapping[str, tuple[int, int]]:
        """Smallest and largest size of each dimension, by name."""
        return {name: (getattr(self.smallest, name), getattr(self.largest, name)) for name in WRITTEN}

    def coordinates(self, rank: int, world: int) -> Mapping[str, int]:
        """Return a rank's coordinates in the layout that a group of ``world`` ranks uses, without dimensions of 1.

        >>> dict(LayoutRange.parse("replicate=1:4,tp=2").coordinates(5, world=6))
        {'replicate': 2, 'tp': 1}

        Raises:
            LayoutError: If no layout of the range has so few ranks, or the layout has no place for this rank.
        """
        return self.choose(world).named(rank)

    @property
    def fixed(self) -> Layout | None:
        """The only layout of the range; None if it has several.

        >>> str(LayoutRange.parse("shard=2").fixed), LayoutRange.parse("shard=2:4").fixed
        ('shard=2', None)
        """
        return self.largest if self.smallest == self.largest else None

    def choose(self, world: int) -> Layout:
        """Return the layout that a group of ``world`` ranks uses: the one with the most ranks, at most ``world``.

        Among layouts with the same number of ranks, it is the one that spreads the model over the most ranks: in any
        other, each rank must hold more, which may not fit. Among these, the most shards win, then the most stages. The
        result depends only on the range and ``world``, so it is the same on every rank. Ranks that the layout does not
        use are spare.

        >>> str(LayoutRange.parse("replicate=1:4,shard=2").choose(7))
        'replicate=3,shard=2'
        >>> str(LayoutRange.parse("replicate=1:4,shard=2:4").choose(8))
        'replicate=2,shard=4'

        Raises:
            LayoutError: If even the smallest layout needs more ranks.
        """
        if self.smallest.world > world:
            whose = "" if self.fixed else f", the smallest layout of {self},"
            raise LayoutError(
                f"{self.smallest}{whose} takes {self.smallest.world} ranks, and there "
                f"{'is' if world == 1 else 'are'} {world}; give the job more ranks, or allow a smaller layout"
            )
        spans, (outermost, *others) = self.size_ranges, DIMENSION_NAMES
        # Shards come first, then stages: among replicas of equal size, the larger tuple wins.
        names = sorted(others, key=lambda name: name not in BATCH_NAMES)
        least, most = spans[outermost]

        def ranks(sizes: tuple[int, ...]) -> int:
            replica = math.prod(sizes)
            return min(most, world // replica) * replica

        sizes = max(_shapes([spans[name] for name in names], world // least), key=lambda s: (ranks(s), math.prod(s), s))
        return Layout(**{outermost: ranks(sizes) // math.prod(sizes)}, **dict(zip(names, sizes, strict=True)))

    def node_counts(self, low: int, high: int, ranks_per_node: int) -> array[int]:
        """Return the numbers of nodes from ``low`` to ``high`` that a layout of the range fills, ascending.

        The time does not depend on the range: n nodes are full where n * ``ranks_per_node`` is a multiple of a
        replica, so the numbers of one replica are a progression.

        >>> list(LayoutRange.parse("replicate=1:4,shard=2").node_counts(1, 9, 1))
        [2, 4, 6, 8]
        """
        (least, most), *spans = (self.size_ranges[name] for name in DIMENSION_NAMES)
        replicas = {math.prod(sizes) for sizes in _shapes(spans, high * ranks_per_node // least)}
        progressions = (
            (replica // math.gcd(replica, ranks_per_node), -(-replica * least // ranks_per_node), replica)
            for replica in replicas
        )
        fits = bytearray(high + 1)
        ends: dict[int, int] = {}
        for step, first, replica in sorted(progressions):
            start = max(first, low, ends.get(step, 0) + 1)
            last = min(high, replica * most // ranks_per_node)
            numbers = range(-(-start // step) * step, last + 1, step)
            fits[numbers.start : numbers.stop : step] = b"\x01" * len(numbers)
            ends[step] = max(last, ends.get(step, 0))
        return array("l", compress(range(high + 1), fits))


def _shapes(spans: Sequence[tuple[int, int]], limit: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes within the spans whose product is at most ``limit``.

    Plain numbers are faster than layouts: there may be thousands of shapes, and only one becomes a layout.

    >>> list(_shapes([(1, 2), (2, 4)], 6))
    [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3)]
    """
    if not spans:
        yield ()
        return
    (least, most), *others = spans
    for size in range(least, min(most, limit // math.prod(each[0] for each in others)) + 1):
        for more in _shapes(others, limit // size):
            yield size, *more
