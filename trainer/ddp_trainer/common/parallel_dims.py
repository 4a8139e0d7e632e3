"""How the ranks of a job share one model: by replicas, shards of state, slices of tensors and stages of layers.

A layout is four numbers, written ``replicate=2,shard=4,tp=2,pp=2``; dimensions of 1 may be left out. It is arithmetic
and nothing else, standard library only: the plugin checks a layout before a job is sent, the launcher names a rank's
place by it, and the trainer builds its device mesh from it. None of them may count ranks in another way.

Dimensions from the outermost, whose coordinate changes slowest from rank to rank, to the innermost: ``replicate``,
``pp``, ``shard``, ``tp``. So one replica of the model is a contiguous block of ranks, and a lost pod hits as few
replicas as possible; the ranks of ``tp``, which speak the most, are neighbours in one pod; and a stage's ranks stand
together, since stages speak the least.
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
"""Largest size of a dimension; far above any cluster, so that a slip of the hand is told at once."""

MOST_REPLICAS: Final = 4096
"""Most kinds of replica that a range may allow, so that the choice among them takes no time."""

WRITTEN: Final = ("replicate", "shard", "tp", "pp")
"""The same in the order in which people, and the canonical text, write them."""
_EXAMPLE: Final = "replicate=2,shard=4"
_SIZE: Final = re.compile(r"[0-9]+")


class LayoutError(ValueError):
    """A layout that does not hold together; its text is one sentence with the value and the way out."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands in a layout: a coordinate for each dimension, counted from 0."""

    replicate: int
    pp: int
    shard: int
    tp: int
    shards: int = field(default=0, compare=False)
    """Size of the dimension ``shard``, as :meth:`Layout.place` fills it in; 0 where nobody has said it."""

    @property
    def data_rank(self) -> int:
        """Which of the ``layout.data_size`` parts of a batch is this rank's: ranks of one replica and shard that differ
        in ``tp`` or ``pp`` share theirs.

        >>> [Layout(replicate=2, shard=2).place(rank).data_rank for rank in range(4)]
        [0, 1, 2, 3]
        >>> [Layout(replicate=2, tp=2).place(rank).data_rank for rank in range(4)]
        [0, 0, 1, 1]

        Raises:
            LayoutError: The place was made by hand and does not know how many shards there are.
        """
        if not self.shards:
            raise LayoutError(f"{self} is of no layout, so it has no share of a batch; ask Layout.place for it")
        return self.replicate * self.shards + self.shard


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks there are along each dimension."""

    replicate: int = 1
    """Copies of the model; the one dimension that grows and shrinks while a job runs."""
    shard: int = 1
    """Ranks that keep a share each of weights, gradients and optimizer, and gather what they are about to use."""
    tp: int = 1
    """Ranks that compute a slice each of every layer."""
    pp: int = 1
    """Stages of consecutive layers, each on ranks of its own."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            _demand_size(name, size, str(size))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read what people write.

        >>> Layout.parse("replicate=2,shard=4,tp=2,pp=2")
        Layout(replicate=2, shard=4, tp=2, pp=2)
        >>> Layout.parse("shard=1:4")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: shard=1:4 is a range, and one layout is asked for; give ...

        Raises:
            LayoutError: ``text`` is no layout, or a range of them.
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
        """Canonical text: dimensions of 1 are left out.

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
        """Number of ranks that hold one replica of the model between them: a contiguous block."""
        return self.pp * self.shard * self.tp

    @property
    def data_size(self) -> int:
        """Number of parts that a batch is divided into, see :attr:`Place.data_rank`."""
        return self.replicate * self.shard

    def place(self, rank: int) -> Place:
        """Where a rank stands.

        >>> Layout(replicate=2, shard=2, tp=2).place(5)
        Place(replicate=1, pp=0, shard=0, tp=1, shards=2)

        Raises:
            LayoutError: There is no such rank.
        """
        if not 0 <= rank < self.world:
            raise LayoutError(f"there is no rank {rank} in {self}, which has ranks 0 to {self.world - 1}")
        rest, tp = divmod(rank, self.tp)
        rest, shard = divmod(rest, self.shard)
        replicate, pp = divmod(rest, self.pp)
        return Place(replicate, pp, shard, tp, self.shard)

    def rank(self, place: Place) -> int:
        """Who stands there; the inverse of :meth:`place`.

        >>> layout = Layout(replicate=2, shard=2, tp=2, pp=3)
        >>> all(layout.rank(layout.place(rank)) == rank for rank in range(layout.world))
        True

        Raises:
            LayoutError: A coordinate is outside of its dimension.
        """
        rank = 0
        for name in DIMENSIONS:
            size, coordinate = getattr(self, name), getattr(place, name)
            if not 0 <= coordinate < size:
                raise LayoutError(f"there is no {name} {coordinate} in {self}; {name} counts from 0 to {size - 1}")
            rank = rank * size + coordinate
        return rank

    def told(self, rank: int) -> str:
        """A rank's place in words; dimensions of 1 say nothing and are left out.

        >>> Layout(replicate=2, shard=2, tp=2).told(5)
        'replicate 1, shard 0, tp 1'
        >>> Layout().told(0)
        'replicate 0'

        Raises:
            LayoutError: There is no such rank.
        """
        return ", ".join(f"{name} {coordinate}" for name, coordinate in self.named(rank).items())

    def coordinates(self, rank: int) -> str:
        """The same for a narrow column: a letter of each dimension, and the coordinate.

        >>> Layout(replicate=2, shard=4, tp=2, pp=2).coordinates(21)
        'r1 p0 s2 t1'

        Raises:
            LayoutError: There is no such rank.
        """
        return " ".join(f"{name[0]}{coordinate}" for name, coordinate in self.named(rank).items())

    def named(self, rank: int) -> Mapping[str, int]:
        """The same by the dimensions' names.

        Raises:
            LayoutError: There is no such rank.
        """
        place = self.place(rank)
        shown = [name for name in DIMENSIONS if getattr(self, name) > 1] or ["replicate"]
        return {name: getattr(place, name) for name in shown}


@dataclass(frozen=True, slots=True)
class LayoutRange:
    """The layouts that a job allows, of which each worker group takes one that its ranks suffice for."""

    smallest: Layout
    """The least of each dimension."""
    largest: Layout
    """The most of each dimension."""

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
        """Read what people write; a fixed layout is a range of one.

        >>> LayoutRange.parse("replicate=1:4,shard=2").largest
        Layout(replicate=4, shard=2, tp=1, pp=1)
        >>> LayoutRange.parse("ddp=4")
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: 'ddp' is no dimension of a layout; use replicate, shard, tp \
and pp, as in replicate=2,shard=4

        Raises:
            LayoutError: ``text`` is no range of layouts.
        """
        sizes = _sizes(text)
        return cls(
            Layout(**{name: least for name, (least, _) in sizes.items()}),
            Layout(**{name: most for name, (_, most) in sizes.items()}),
        )

    @classmethod
    def of(cls, layout: Layout) -> LayoutRange:
        """The range of that one layout."""
        return cls(layout, layout)

    def __str__(self) -> str:
        """Canonical text.

        >>> str(LayoutRange.parse("tp=1, shard=2:4, replicate=2:2"))
        'replicate=2,shard=2:4'
        """
        return _text({name: _range_text(least, most) for name, (least, most) in self.spans.items()})

    @property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """Least and most of each dimension, by its name."""
        return {name: (getattr(self.smallest, name), getattr(self.largest, name)) for name in WRITTEN}

    def coordinates(self, rank: int, world: int) -> Mapping[str, int]:
        """Where a rank stands in the layout that a group of so many ranks takes: a coordinate for each dimension that
        has more than one.

        >>> dict(LayoutRange.parse("replicate=1:4,tp=2").coordinates(5, world=6))
        {'replicate': 2, 'tp': 1}

        Raises:
            LayoutError: No layout of the range has so few ranks, or this one has no place.
        """
        return self.choose(world).named(rank)

    @property
    def fixed(self) -> Layout | None:
        """The one layout, where there is but one.

        >>> LayoutRange.parse("shard=2").fixed, LayoutRange.parse("shard=2:4").fixed
        (Layout(replicate=1, shard=2, tp=1, pp=1), None)
        """
        return self.largest if self.smallest == self.largest else None

    def choose(self, world: int) -> Layout:
        """The layout that a group of ``world`` ranks takes: of those with at most so many ranks, one with the most.

        Where several have as many, the one whose model is spread over the most ranks, since what each rank must hold
        grows with every other choice and may not fit; then the one with the most shards, and then stages. The answer
        depends on nothing but the range and ``world``, so every rank gets the same. It may have fewer ranks than
        ``world``: the others are spare.

        >>> LayoutRange.parse("replicate=1:4,shard=2").choose(7)
        Layout(replicate=3, shard=2, tp=1, pp=1)
        >>> LayoutRange.parse("replicate=1:4,shard=2:4").choose(8)
        Layout(replicate=2, shard=4, tp=1, pp=1)

        Raises:
            LayoutError: Even the smallest needs more ranks.
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
        """For each replica allowed, and the most of them that ``world`` ranks suffice for: ranks in all and of one
        replica, shards and stages. Numbers, since there may be thousands of which one becomes a layout.
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
    """Least and most of each dimension that ``text`` names."""
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
