"""Layouts of a job's ranks: replicas, shards of state, slices of tensors and pipeline stages.

:class:`Layout` is four numbers, written ``replicate=2,shard=4,tp=2,pp=2``; dimensions of 1 may be left out.
:class:`LayoutRange` is the range of layouts that a job allows. The plugin checks a layout before a job is sent, the
launcher names a rank's place by it, and the trainer builds its device mesh from it. All of them must number ranks in
the same way, so this module holds the arithmetic. Standard library only.

The order of the dimensions is ``replicate``, ``pp``, ``shard``, ``tp``, from the outermost, whose coordinate changes
slowest from rank to rank, to the innermost. One replica of the model is thus a contiguous block of ranks, and a lost
pod affects as few replicas as possible. Ranks of ``tp`` communicate the most and are neighbours in one pod. Stages
communicate the least, so the ranks of one stage are adjacent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

DIMENSIONS: Final = ("replicate", "pp", "shard", "tp")
"""Names of the dimensions, from the outermost to the innermost."""

MOST: Final = 1_000_000
"""Largest size of a dimension. It is far above any cluster, so that a typing error is reported early."""

MOST_REPLICAS: Final = 4096
"""Most replica shapes that a range may allow, so that choosing among them takes little time."""

WRITTEN: Final = ("replicate", "shard", "tp", "pp")
"""Names of the dimensions in the order of the canonical text."""
_EXAMPLE: Final = "replicate=2,shard=4"
_SIZE: Final = re.compile(r"[0-9]+")


class LayoutError(ValueError):
    """Invalid layout; the message is one sentence with the value and the fix."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of one rank in a layout: its coordinate in each dimension, counted from 0."""

    replicate: int
    pp: int
    shard: int
    tp: int
    shards: int = field(default=0, compare=False)
    """Size of the dimension ``shard``, which :meth:`Layout.place` fills in; 0 where it is not known."""

    @property
    def data_rank(self) -> int:
        """Index of this rank's part of a batch, of ``layout.data_size`` parts.

        Ranks of one replica and shard that differ in ``tp`` or ``pp`` share their part.

        >>> [Layout(replicate=2, shard=2).place(rank).data_rank for rank in range(4)]
        [0, 1, 2, 3]
        >>> [Layout(replicate=2, tp=2).place(rank).data_rank for rank in range(4)]
        [0, 0, 1, 1]

        Raises:
            LayoutError: If the place was not made by :meth:`Layout.place`, so the number of shards is not known.
        """
        if not self.shards:
            raise LayoutError(f"{self} is of no layout, so it has no share of a batch; ask Layout.place for it")
        return self.replicate * self.shards + self.shard


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the ranks: the number of ranks along each dimension."""

    replicate: int = 1
    """Copies of the model. This is the one dimension that grows and shrinks while a job runs."""
    shard: int = 1
    """Ranks that each keep a shard of weights, gradients and optimizer state, and gather weights before they use
    them."""
    tp: int = 1
    """Ranks that each compute a slice of every layer."""
    pp: int = 1
    """Pipeline stages of consecutive layers, each on a separate set of ranks."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            _demand_size(name, size, str(size))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout that a text describes.

        >>> Layout.parse("replicate=2,shard=4,tp=2,pp=2")
        Layout(replicate=2, shard=4, tp=2, pp=2)
        >>> Layout.parse("shard=1:4")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: shard=1:4 is a range, and one layout is asked for; give ...

        Raises:
            LayoutError: If ``text`` is not a layout, or is a range of layouts.
        """
        sizes = {}
        for name, (least, most) in _sizes(text).items():
            if least != most:
                raise LayoutError(
                    f"{name}={least}:{most} is a range, and one layout is asked for; give one number, as {name}={most}"
                )
            sizes[name] = most
        return cls(**sizes)

    def __str__(self) -> str:
        """Return the canonical text, without dimensions of 1.

        >>> str(Layout(pp=2, shard=4)), str(Layout())
        ('shard=4,pp=2', 'replicate=1')
        """
        return _text({name: str(getattr(self, name)) for name in WRITTEN})

    @property
    def world(self) -> int:
        """Number of ranks.

        >>> Layout(replicate=2, shard=4, tp=2).world
        16
        """
        return self.replicate * self.replica

    @property
    def replica(self) -> int:
        """Number of ranks that together hold one replica of the model: a contiguous block."""
        return self.pp * self.shard * self.tp

    @property
    def data_size(self) -> int:
        """Number of parts into which a batch is divided, see :attr:`Place.data_rank`."""
        return self.replicate * self.shard

    def place(self, rank: int) -> Place:
        """Return the place of a rank.

        >>> Layout(replicate=2, shard=2, tp=2).place(5)
        Place(replicate=1, pp=0, shard=0, tp=1, shards=2)

        Raises:
            LayoutError: If the layout has no such rank.
        """
        if not 0 <= rank < self.world:
            raise LayoutError(f"there is no rank {rank} in {self}, which has ranks 0 to {self.world - 1}")
        rest, tp = divmod(rank, self.tp)
        rest, shard = divmod(rest, self.shard)
        replicate, pp = divmod(rest, self.pp)
        return Place(replicate, pp, shard, tp, self.shard)

    def rank(self, place: Place) -> int:
        """Return the rank at a place; the inverse of :meth:`place`.

        >>> layout = Layout(replicate=2, shard=2, tp=2, pp=3)
        >>> all(layout.rank(layout.place(rank)) == rank for rank in range(layout.world))
        True

        Raises:
            LayoutError: If a coordinate is outside of its dimension.
        """
        rank = 0
        for name in DIMENSIONS:
            size, coordinate = getattr(self, name), getattr(place, name)
            if not 0 <= coordinate < size:
                raise LayoutError(f"there is no {name} {coordinate} in {self}; {name} counts from 0 to {size - 1}")
            rank = rank * size + coordinate
        return rank

    def told(self, rank: int) -> str:
        """Return a rank's coordinates as text, without dimensions of 1.

        >>> Layout(replicate=2, shard=2, tp=2).told(5)
        'replicate 1, shard 0, tp 1'
        >>> Layout().told(0)
        'replicate 0'

        Raises:
            LayoutError: If the layout has no such rank.
        """
        return ", ".join(f"{name} {coordinate}" for name, coordinate in self.named(rank).items())

    def coordinates(self, rank: int) -> str:
        """Return a rank's coordinates in short form: the first letter of each dimension and the coordinate.

        >>> Layout(replicate=2, shard=4, tp=2, pp=2).coordinates(21)
        'r1 p0 s2 t1'

        Raises:
            LayoutError: If the layout has no such rank.
        """
        return " ".join(f"{name[0]}{coordinate}" for name, coordinate in self.named(rank).items())

    def named(self, rank: int) -> Mapping[str, int]:
        """Return a rank's coordinates by dimension, without dimensions of 1.

        Raises:
            LayoutError: If the layout has no such rank.
        """
        place = self.place(rank)
        shown = [name for name in DIMENSIONS if getattr(self, name) > 1] or ["replicate"]
        return {name: getattr(place, name) for name in shown}


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
        kinds = math.prod(most - least + 1 for name, (least, most) in self.spans.items() if name != "replicate")
        if kinds > MOST_REPLICAS:
            raise LayoutError(f"{self} allows {kinds} kinds of replica; narrow shard, tp and pp to {MOST_REPLICAS}")

    @classmethod
    def parse(cls, text: str) -> LayoutRange:
        """Return the range of layouts that a text describes; a fixed layout is a range of one.

        >>> LayoutRange.parse("replicate=1:4,shard=2").largest
        Layout(replicate=4, shard=2, tp=1, pp=1)
        >>> LayoutRange.parse("ddp=4")
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: 'ddp' is no dimension of a layout; use replicate, shard, tp \
and pp, as in replicate=2,shard=4

        Raises:
            LayoutError: If ``text`` is not a range of layouts.
        """
        sizes = _sizes(text)
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
        return _text({name: _range_text(least, most) for name, (least, most) in self.spans.items()})

    @property
    def spans(self) -> Mapping[str, tuple[int, int]]:
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

        >>> LayoutRange.parse("shard=2").fixed, LayoutRange.parse("shard=2:4").fixed
        (Layout(replicate=1, shard=2, tp=1, pp=1), None)
        """
        return self.largest if self.smallest == self.largest else None

    def choose(self, world: int) -> Layout:
        """Return the layout that a group of ``world`` ranks uses: the one with the most ranks, at most ``world``.

        Among layouts with the same number of ranks, it is the one that spreads the model over the most ranks: in any
        other, each rank must hold more, which may not fit. Among these, the most shards win, then the most stages. The
        result depends only on the range and ``world``, so it is the same on every rank. Ranks that the layout does not
        use are spare.

        >>> LayoutRange.parse("replicate=1:4,shard=2").choose(7)
        Layout(replicate=3, shard=2, tp=1, pp=1)
        >>> LayoutRange.parse("replicate=1:4,shard=2:4").choose(8)
        Layout(replicate=2, shard=4, tp=1, pp=1)

        Raises:
            LayoutError: If even the smallest layout needs more ranks.
        """
        if self.smallest.world > world:
            whose = "" if self.fixed else f", the smallest layout of {self},"
            raise LayoutError(
                f"{self.smallest}{whose} takes {self.smallest.world} ranks, and there {_be(world)} {world}; "
                "give the job more ranks, or allow a smaller layout"
            )
        ranks, replica, shard, pp = max(self._within(world))
        return Layout(replicate=ranks // replica, shard=shard, tp=replica // (shard * pp), pp=pp)

    def _within(self, world: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (ranks in all, ranks per replica, shards, stages) per replica shape, with the most replicas that fit.

        Plain numbers are faster than layouts: there may be thousands of shapes, and only one becomes a layout.
        """
        least, most = self.smallest, self.largest
        for tp in _span(least.tp, most.tp, world // (least.replicate * least.pp * least.shard)):
            for pp in _span(least.pp, most.pp, world // (least.replicate * tp * least.shard)):
                for shard in _span(least.shard, most.shard, world // (least.replicate * tp * pp)):
                    replica = tp * pp * shard
                    yield min(most.replicate, world // replica) * replica, replica, shard, pp


def _span(least: int, most: int, limit: int) -> range:
    return range(least, min(most, limit) + 1)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _range_text(least: int, most: int) -> str:
    return str(most) if least == most else f"{least}:{most}"


def _text(sizes: Mapping[str, str]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size != "1") or "replicate=1"


def _sizes(text: str) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest size of each dimension that ``text`` names."""
    sizes: dict[str, tuple[int, int]] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise LayoutError(f"{text!r} is no layout; write dimension=size with commas, as in {_EXAMPLE}")
        if name not in WRITTEN:
            raise LayoutError(
                f"{name!r} is no dimension of a layout; use replicate, shard, tp and pp, as in {_EXAMPLE}"
            )
        if name in sizes:
            raise LayoutError(f"{text!r} names {name} twice; name it once")
        least, colon, most = size.partition(":")
        sizes[name] = (_size(name, least, size), _size(name, most if colon else least, size))
    return sizes


def _size(name: str, digits: str, given: str) -> int:
    if not _SIZE.fullmatch(digits) or len(digits) > len(str(MOST)):
        raise _no_size(name, given)
    return _demand_size(name, int(digits), given)


def _demand_size(name: str, size: object, given: str) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
        raise _no_size(name, given)
    return size


def _no_size(name: str, given: str) -> LayoutError:
    return LayoutError(f"{name}={given} is no size of a dimension; give a whole number from 1 to {MOST}, as {name}=2")
