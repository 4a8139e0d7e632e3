"""Parallel dimensions of a job, and the range of layouts that a job may have with more or fewer ranks.

:data:`DIMENSIONS` is the table of mesh dimensions; other modules derive from it what they do for each dimension.
:class:`Layout` has the size of each, written ``replicate=2,shard=4,tp=2,pp=2``; dimensions of 1 may be left out.
The plugin checks a layout before a job is sent, the launcher names a rank's place by it, and the trainer builds its
device mesh from it. All of them must number ranks in the same way, so this module holds the arithmetic. A job may also
allow a range of layouts: :mod:`~ddp_trainer.common.parallel_dims`. Standard library only.

The order of the dimensions is ``replicate``, ``pp``, ``shard``, ``tp``, from the outermost, whose coordinate changes
slowest from rank to rank, to the innermost. One replica of the model is thus a contiguous block of ranks, and a lost
pod affects as few replicas as possible. Ranks of ``tp`` communicate the most and are neighbours in one pod. Stages
communicate the least, so the ranks of one stage are adjacent.

How to add a dimension, for example ``cp`` between ``shard`` and ``tp``:

1. Add a row to :data:`DIMENSIONS`; the later the row, the nearer to each other are its ranks. Whatever only counts or
   names ranks follows: ``--parallel``, the mesh and its groups, checkpoint chunks, recovery, metric labels, the
   checks of ``kubectl ddp``. Add the attribute to ``_Sizes``, and its place to ``test_parallel_dims.py``. Now the
   ranks compute copies; ``tests/local/train/test_new_dimension.py`` trains with such a dimension.
2. What the model must satisfy is a function beside ``of_slices`` in ``common/trainer_options.py``. Options that
   cannot work with it are in ``common/trainer_options.py``. ``layout_violations`` in
   ``kubectl_ddp/spec/trainer_arguments.py`` makes ``submit`` refuse the same.
3. What the ranks compute is a function of a module in ``train/parallel`` (in the form of ``apply_tp``), called by
   ``_shard_model`` of ``train/loop/group_components.py``, and a strategy in ``factory.py`` (``tensor_parallel.py`` is
   the example of ranks that compute parts of the same samples). ``forward`` returns the complete losses on all of
   them, and ``computes_together`` is True. With dropout, ranks with the same samples draw the same mask:
   ``train/mesh/device_mesh.py``.
4. Update ``docs/parallel.md``, ``docs/strategies.md`` and ``docs/status.md``, and run ``make docs``.

The plugin checks it before a job is sent, and the launcher and every rank choose the same layout from it. Standard
library only.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from itertools import compress
from typing import TYPE_CHECKING, Final


@dataclass(frozen=True, slots=True)
class MeshDimension:
    """One dimension of the mesh of a job's ranks."""

    name: str
    """Name in ``--parallel``, in metric labels and of the mesh dimension. Its first letter is unique."""
    help: str
    """What the ranks along the dimension do, as in docs/parallel.md."""
    splits_batch: bool = False
    """Its ranks compute different samples; along other dimensions, ranks share their samples."""
    splits_layers: bool = False
    """Its ranks hold different layers, and the last one computes the losses."""
    is_used_in_layers: bool = False
    """Its ranks communicate within every layer, hundreds of times a step, so they must be in one pod."""


DIMENSIONS: Final = (
    MeshDimension("replicate", "each hold a copy of the model, and learn from different samples", splits_batch=True),
    MeshDimension("pp", "each have consecutive layers, for the same samples", splits_layers=True),
    MeshDimension(
        "shard",
        "each keep a share of weights, gradients and optimizer, and learn from different samples",
        splits_batch=True,
    ),
    MeshDimension("tp", "each compute a slice of every layer, for the same samples", is_used_in_layers=True),
)
"""The mesh dimensions, from the outermost to the innermost. The first one, ``replicate``, is the only one whose ranks
hold the same state, and the only one that grows and shrinks while a job runs."""

DIMENSION_NAMES: Final = tuple(dimension.name for dimension in DIMENSIONS)
"""Names of the dimensions, from the outermost to the innermost. They also name the metric labels of a
rank's coordinates, which are empty for a dimension of size 1 and without a layout."""

BATCH_NAMES: Final = tuple(dimension.name for dimension in DIMENSIONS if dimension.splits_batch)
"""Names of the dimensions that divide a batch, from the outermost to the innermost."""

SAME_LAYERS: Final = tuple(dimension.name for dimension in DIMENSIONS if not dimension.splits_layers)
"""Names of the dimensions along which ranks hold the same layers, or parts of them."""

WRITTEN: Final = (*BATCH_NAMES, *(name for name in reversed(DIMENSION_NAMES) if name not in BATCH_NAMES))
"""Names of the dimensions in the order of the canonical text, which begins with those that divide a batch."""

MOST: Final = 1_000_000
"""Largest size of a dimension. It is far above any cluster, so that a typing error is reported early."""

_EXAMPLE: Final = "replicate=2,shard=4"
_SIZE: Final = re.compile(r"[0-9]+")

if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _Sizes:
        """The attributes of :data:`DIMENSIONS`, for type checkers."""

        replicate: int = 1
        shard: int = 1
        tp: int = 1
        pp: int = 1

    _Coordinates = _Sizes
else:
    _Sizes = make_dataclass("_Sizes", [(name, int, 1) for name in WRITTEN], frozen=True)
    _Coordinates = make_dataclass("_Coordinates", [(name, int, 0) for name in DIMENSION_NAMES], frozen=True)


class LayoutError(ValueError):
    """Invalid layout; the message is one sentence with the value and the fix."""


@dataclass(frozen=True)
class Place(_Coordinates):
    """Place of one rank in a layout: its coordinate in each dimension, counted from 0."""

    layout: Layout | None = field(default=None, compare=False, repr=False)
    """The layout, which :meth:`Layout.place` fills in."""

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
        if self.layout is None:
            raise LayoutError(f"{self} is of no layout, so it has no share of a batch; ask Layout.place for it")
        return self.layout.index(self, BATCH_NAMES)

    @property
    def has_losses(self) -> bool:
        """True on one of the ranks that share a part of a batch, which has the losses of its samples."""
        return all(
            getattr(self, dimension.name)
            == (getattr(self.layout, dimension.name) - 1 if dimension.splits_layers else 0)
            for dimension in DIMENSIONS
            if not dimension.splits_batch
        )


@dataclass(frozen=True)
class Layout(_Sizes):
    """Layout of the ranks: the number of ranks along each dimension of :data:`DIMENSIONS`."""

    def __post_init__(self) -> None:
        for name in WRITTEN:
            size = getattr(self, name)
            _validate_dim_size(name, size, str(size))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout that a text describes.

        >>> Layout.parse("replicate=2,shard=4") == Layout(replicate=2, shard=4)
        True
        >>> Layout.parse("shard=1:4")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ddp_trainer.common.parallel_dims.LayoutError: shard=1:4 is a range, and a single layout is required; give ...

        Raises:
            LayoutError: If ``text`` is not a layout, or is a range of layouts.
        """
        sizes = parse_dim_sizes(text)
        for name, (least, most) in sizes.items():
            if least != most:
                raise LayoutError(
                    f"{name}={least}:{most} is a range, and a single layout is required; give one number, as "
                    f"{name}={most}"
                )
        return cls(**{name: most for name, (_, most) in sizes.items()})

    def __str__(self) -> str:
        """Return the canonical text, without dimensions of 1.

        >>> str(Layout(pp=2, shard=4)), str(Layout())
        ('shard=4,pp=2', 'replicate=1')
        """
        return format_sizes({name: str(getattr(self, name)) for name in WRITTEN})

    def ranks(self, names: Iterable[str] = DIMENSION_NAMES) -> int:
        """Return the number of ranks along these dimensions together."""
        return math.prod(getattr(self, name) for name in names)

    @property
    def world(self) -> int:
        """Number of ranks.

        >>> Layout(replicate=2, shard=4, tp=2).world
        16
        """
        return self.ranks()

    @property
    def replica(self) -> int:
        """Number of ranks that together hold one replica of the model: a contiguous block."""
        return self.ranks(DIMENSION_NAMES[1:])

    @property
    def data_size(self) -> int:
        """Number of parts into which a batch is divided, see :attr:`Place.data_rank`."""
        return self.ranks(BATCH_NAMES)

    def place(self, rank: int) -> Place:
        """Return the place of a rank.

        >>> Layout(replicate=2, shard=2, tp=2).place(5) == Place(replicate=1, tp=1)
        True

        Raises:
            LayoutError: If the layout has no such rank.
        """
        if not 0 <= rank < self.world:
            raise LayoutError(f"there is no rank {rank} in {self}, which has ranks 0 to {self.world - 1}")
        coordinates = {}
        for name in reversed(DIMENSION_NAMES):
            rank, coordinates[name] = divmod(rank, getattr(self, name))
        return Place(**coordinates, layout=self)

    def rank(self, place: Place) -> int:
        """Return the rank at a place; the inverse of :meth:`place`.

        >>> layout = Layout(replicate=2, shard=2, tp=2, pp=3)
        >>> all(layout.rank(layout.place(rank)) == rank for rank in range(layout.world))
        True

        Raises:
            LayoutError: If a coordinate is outside of its dimension.
        """
        return self.index(place, DIMENSION_NAMES)

    def index(self, place: Place, names: Iterable[str]) -> int:
        """Return the index of a place among those that differ in these dimensions, the outermost first.

        Raises:
            LayoutError: If a coordinate is outside of its dimension.
        """
        index = 0
        for name in names:
            size, coordinate = getattr(self, name), getattr(place, name)
            if not 0 <= coordinate < size:
                raise LayoutError(f"there is no {name} {coordinate} in {self}; {name} counts from 0 to {size - 1}")
            index = index * size + coordinate
        return index

    def describe(self, rank: int) -> str:
        """Return a rank's coordinates as text, without dimensions of 1.

        >>> Layout(replicate=2, shard=2, tp=2).describe(5)
        'replicate 1, shard 0, tp 1'
        >>> Layout().describe(0)
        'replicate 0'

        Raises:
            LayoutError: If the layout has no such rank.
        """
        return ", ".join(f"{name} {coordinate}" for name, coordinate in self.named(rank).items())

    def named(self, rank: int) -> Mapping[str, int]:
        """Return a rank's coordinates by dimension, without dimensions of 1.

        Raises:
            LayoutError: If the layout has no such rank.
        """
        place = self.place(rank)
        shown = [name for name in DIMENSION_NAMES if getattr(self, name) > 1] or DIMENSION_NAMES[:1]
        return {name: getattr(place, name) for name in shown}


def join_names(names: Sequence[str]) -> str:
    """Return names of dimensions as text, as in ``shard, tp and pp``."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def format_sizes(sizes: Mapping[str, str]) -> str:
    """Return the canonical text of the sizes of all dimensions."""
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size != "1") or "replicate=1"


def parse_dim_sizes(text: str) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest size of each dimension that ``text`` names.

    Raises:
        LayoutError: If ``text`` is neither a layout nor a range of layouts.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise LayoutError(f"{text!r} is not a layout; write dimension=size with commas, as in {_EXAMPLE}")
        if name not in WRITTEN:
            raise LayoutError(f"{name!r} is not a dimension of a layout; use {join_names(WRITTEN)}, as in {_EXAMPLE}")
        if name in sizes:
            raise LayoutError(f"{text!r} names {name} twice; name it once")
        least, colon, most = size.partition(":")
        sizes[name] = (_size(name, least, size), _size(name, most if colon else least, size))
    return sizes


def _size(name: str, digits: str, given: str) -> int:
    is_number = _SIZE.fullmatch(digits) and len(digits) <= len(str(MOST))
    return _validate_dim_size(name, int(digits) if is_number else None, given)


def _validate_dim_size(name: str, size: object, given: str) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
        raise LayoutError(
            f"{name}={given} is not a size of a dimension; give a whole number from 1 to {MOST}, as {name}=2"
        )
    return size


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
    for size in range(least, min(most, limit // math.prod(span[0] for span in others)) + 1):
        for more in _shapes(others, limit // size):
            yield size, *more
