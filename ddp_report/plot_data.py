"""Plots of a page as data: SVG paths, axis labels, descriptions, tooltip texts, and marks of events.

Events close to each other share one mark, and labels never overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddp_report import draw
from ddp_report.draw import Tick, clock, duration, elapsed_text, format_number, scale_of, ticks
from ddp_report.series import Timeline, Values, total
from ddp_report.time_series import LOST, Change, JobTimeSeries, Kind, RankHistory
from ddp_trainer.common.time_classes import JobTime, Phase
from kubectl_ddp.util.text_table import pluralize


@dataclass(frozen=True, slots=True)
class LegendItem:
    """A colour and its meaning."""

    style: str
    """CSS class."""
    name: str
    share: float | None = None
    """Share of the total, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot over the common time axis."""

    id: str
    title: str
    note: str
    """Quantity and unit."""
    svg: str
    rows: tuple[Tick, ...]
    """Marks of the vertical axis, from 0 at the bottom."""
    described: str
    """Text alternative for screen readers."""
    caption: str = ""
    """Sentence below the plot, for what neither plot nor legend shows."""
    legend: tuple[LegendItem, ...] = ()
    tooltips: Mapping[str, list[str]] = field(default_factory=dict)
    """Curve name → its value in each interval as text, for tooltips."""
    broken: tuple[float, ...] = ()
    """Positions of values that were not finite."""


PHASES: Final[Mapping[str, str]] = {
    Phase.DATA_WAIT: "waiting for data",
    Phase.HOST_TO_DEVICE: "copy to device",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.COMM_EXPOSED: "waiting for ranks",
    Phase.OPTIMIZER: "optimizer",
    Phase.CHECKPOINT: "checkpoint",
    Phase.OTHER: "other",
}

GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "productive": ("training steps", (JobTime.PRODUCTIVE,)),
    "aside": ("data, checkpoints, evaluation", (JobTime.DATA_WAIT, JobTime.CHECKPOINT_SAVE, JobTime.EVAL)),
    "ready": (
        "start-up, rendezvous, resizes",
        (JobTime.STARTUP, JobTime.INIT, JobTime.RENDEZVOUS, JobTime.CHECKPOINT_LOAD, JobTime.ELASTIC_RESIZE),
    ),
    "absent": ("without pods", (JobTime.SCHEDULING, JobTime.SUSPENDED)),
    "failed": ("failures, hangs", (JobTime.HANG, JobTime.RESTART)),
    "rest": ("other", (JobTime.OTHER,)),
}
"""CSS class → name and states of time; fourteen separate colours could not be distinguished."""

STYLE_OF: Final = {state: style for style, (_, states) in GROUPS.items() for state in states} | {LOST: "failed"}


MOST_VALUE_PLOTS: Final = 8
"""Values of the script with a plot. The others are text."""


def build_plots(numbers: JobTimeSeries, *, was_suspended: bool) -> list[Plot]:
    """Return all plots with data, in page order.

    Args:
        numbers: Series of the present pods.
        was_suspended: True if there were other pods before.
    """
    return [
        plot
        for plot in (
            *(_throughput(numbers, was_suspended=was_suspended), _loss(numbers), *_user_values(numbers)),
            *(_phase_plot(numbers), _states(numbers), _world(numbers)),
        )
        if plot is not None
    ]


def _throughput(numbers: JobTimeSeries, *, was_suspended: bool) -> Plot | None:
    known = [value for value in numbers.throughput if value is not None]
    if not any(known):
        return None
    scale = scale_of(known, from_zero=True)
    mean = sum(known) / sum(map(bool, known))
    low, high, mean_text = map(format_number, (min(known), max(known), mean))
    described = f"Mean {mean_text} samples/s{' since the job was resumed' * was_suspended}, from {low} to {high}."
    return Plot(
        id="throughput",
        title="Throughput",
        note="samples per second, all ranks",
        svg=draw.line(numbers.throughput, scale, filled=True),
        rows=tuple(ticks(scale)),
        described=described,
        caption=described,
        tooltips={"samples/s": [_format_value(value) for value in numbers.throughput]},
    )


def _loss(numbers: JobTimeSeries) -> Plot | None:
    return _curve(numbers.loss, numbers.broken, "loss", title="Training loss", note="mean over all ranks", name="loss")


def _user_values(numbers: JobTimeSeries) -> Iterator[Plot | None]:
    for index, (name, item) in enumerate([*numbers.user_values.items()][:MOST_VALUE_PLOTS]):
        yield _curve(item.values, item.broken, f"value-{index}", title=name, note="reported by the script", name=name)


def _curve(values: Values, broken: Sequence[int], plot_id: str, *, title: str, note: str, name: str) -> Plot | None:
    known = [value for value in values if value is not None]
    if not known and not broken:
        return None
    scale = scale_of(known)
    count = len(values)
    wrong = f" In {len(broken)} of {count} intervals it was not finite." if broken else ""
    went = (
        f"From {format_number(known[0])} to {format_number(known[-1])}; lowest {format_number(min(known))}."
        if known
        else ""
    )
    return Plot(
        id=plot_id,
        title=title,
        note=note + (", logarithmic" if scale.is_logarithmic else ""),
        svg=draw.line(values, scale),
        rows=tuple(ticks(scale)),
        described=f"{went}{wrong}".strip(),
        caption=f"{went}{wrong}".strip(),
        tooltips={name: [_format_value(value) for value in values]},
        broken=tuple((part + 0.5) / count for part in broken),
    )


def _phase_plot(numbers: JobTimeSeries) -> Plot | None:
    bands = {phase: numbers.phases[phase] for phase in PHASES if phase in numbers.phases}
    if not bands:
        return None
    return _stack(
        bands,
        PHASES,
        id="phases",
        title="Phases of a step",
        note="share of the ranks' time in steps",
    )


def _states(numbers: JobTimeSeries) -> Plot | None:
    bands = {}
    for style, (_, states) in GROUPS.items():
        group = [numbers.states[state] for state in states if state in numbers.states]
        if group:
            bands[style] = total(group)
    if not bands:
        return None
    return _stack(
        bands,
        {style: name for style, (name, _) in GROUPS.items()},
        id="states",
        title="Time breakdown",
        note="share of the job's time",
    )


def _stack(bands: Mapping[str, Values], names: Mapping[str, str], *, id: str, title: str, note: str) -> Plot:  # noqa: A002 - HTML's word
    paths = draw.stacked(bands)
    sums = {style: sum(value for value in band if value is not None) for style, band in bands.items()}
    grand_total = sum(sums.values()) or 1.0
    legend = tuple(LegendItem(style, names[style], sums[style] / grand_total) for style in bands)
    return Plot(
        id=id,
        title=title,
        note=note,
        svg="".join(f'<path class="band {style}" d="{path}"/>' for style, path in zip(bands, paths, strict=True)),
        rows=tuple(Tick(share / 4, f"{25 * share} %") for share in (0, 2, 4)),
        described="; ".join(f"{band.name} {band.share:.0%}" for band in legend) + ".",
        legend=legend,
        tooltips={names[style]: _shares(band, bands.values()) for style, band in bands.items()},
    )


def _shares(band: Values, bands: Iterable[Values]) -> list[str]:
    sums = total(bands)
    return [f"{(value or 0.0) / height:.0%}" if height else "" for value, height in zip(band, sums, strict=True)]


def _world(numbers: JobTimeSeries) -> Plot | None:
    known = [value for value in numbers.world if value is not None]
    if not known:
        return None
    scale = scale_of(known, from_zero=True)
    integers = tuple(row for row in ticks(scale) if float(row.text.rstrip("kMG")).is_integer())
    sizes = ", then ".join(str(size) for size in numbers.worlds[-12:])
    return Plot(
        id="world",
        title="World size",
        note="ranks of the worker group",
        svg=draw.steps(numbers.world, scale),
        rows=integers,
        described=f"{sizes} rank{'' if sizes == '1' else 's'}.",
        tooltips={"ranks": [_format_value(value) for value in numbers.world]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """Heat map with ranks from top to bottom and time from left to right."""

    image: str
    """Data URL of the image."""
    rows: tuple[Tick, ...]
    low: str
    high: str
    described: str
    slowest: str
    """Sentence about the slowest rank; empty with a single rank."""
    count: int
    tooltips: Mapping[str, list[str]]
    """Tooltip texts: time of the fastest and the slowest rank per interval."""


def heatmap(ranks: Sequence[RankHistory]) -> Heatmap | None:
    """Return the heat map of step time per rank without waiting for others, or None without data."""
    by_rank = _by_rank(ranks)
    rows = list(by_rank.values())
    if not any(value is not None for row in rows for value in row):
        return None
    low, high = draw.bounds(rows)
    every = max(1, math.ceil(len(rows) / 8))
    names = list(by_rank)
    slowest = _slowest_rank_text(by_rank)
    return Heatmap(
        image=draw.grid(rows, low, high),
        rows=tuple(Tick((at + 0.5) / len(rows), str(names[at])) for at in range(0, len(rows), every)),
        low=duration(low),
        high=duration(high),
        described=f"{pluralize(len(rows), 'rank')}, {duration(low)} to {duration(high)} a step. {slowest}",
        slowest=slowest,
        count=len(rows),
        tooltips=_min_max_ranks(by_rank),
    )


def _by_rank(ranks: Sequence[RankHistory]) -> dict[int, Values]:
    """Return one row per rank, over all pods it ran on."""
    found: dict[int, Values] = {}
    for row in ranks:
        before = found.get(row.rank, (None,) * len(row.own))
        found[row.rank] = tuple(new if new is not None else old for new, old in zip(row.own, before, strict=True))
    return dict(sorted(found.items()))


def _slowest_rank_text(by_rank: Mapping[int, Values]) -> str:
    means = {rank: _average(row) for rank, row in by_rank.items()}
    known = {rank: mean for rank, mean in means.items() if mean is not None}
    if len(known) < 2:
        return ""
    slowest = max(known, key=lambda rank: known[rank])
    middle = sorted(known.values())[len(known) // 2]
    return (
        f"Rank {slowest} was slowest, with {duration(known[slowest])} a step on average. "
        f"The median rank took {duration(middle)}."
    )


def _min_max_ranks(by_rank: Mapping[int, Values]) -> dict[str, list[str]]:
    tooltips: dict[str, list[str]] = {"slowest rank": [], "fastest rank": []}
    for column in zip(*by_rank.values(), strict=True):
        known = [(value, rank) for rank, value in zip(by_rank, column, strict=True) if value is not None]
        for name, choose in (("slowest rank", max), ("fastest rank", min)):
            tooltips[name].append(_ranked(choose(known)) if known else "")
    return tooltips


def _ranked(one: tuple[float, int]) -> str:
    return f"{one[1]}, {duration(one[0])}"


def _average(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _format_value(value: float | None) -> str:
    return format_number(value) if value is not None else ""


SHAPES: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.FAILURE: ("✕", "failure"),
    Kind.SCALE: ("◆", "ranks joined or left"),
    Kind.RESTART: ("▲", "restart"),
}
"""Shape and meaning by kind of change, most important first. Colour is not the only distinction."""

_CLOSE: Final = 0.012
"""Distance on the axis, from 0 to 1, below which events share a mark."""
_LETTER: Final = 0.0155
"""Width of a letter of a label, as a share of the narrowest plot that shows labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMark:
    """One mark on the time axis."""

    place: float
    """Position from 0 (start) to 1 (end)."""
    kind: Kind
    """Most important kind of its events."""
    label: str
    """Words beside the mark; empty if they have no room."""
    is_left: bool
    """True if the words stand on the left of the mark."""
    is_above: bool
    """True if the words stand on a line above those of other marks."""
    texts: tuple[str, ...]
    time: str
    since: str

    @property
    def shape(self) -> str:
        """Shape of its kind."""
        return SHAPES[self.kind][0]

    @property
    def text(self) -> str:
        """All its events as one line."""
        text = "; ".join(self.texts)
        return text[:1].upper() + text[1:]


def mark_events(changes: Sequence[Change], timeline: Timeline) -> list[EventMark]:
    """Return the marks of these changes, which ascend in time.

    If a failure has no room for its label among the others, all failures have theirs on a line above.
    """
    groups = list(_group(changes, timeline))
    mains = [min(group, key=_rank_of) for group in groups]
    places = [timeline.place(group[0].time) for group in groups]
    labels = [
        next((one.label for one in (main, *group) if one.label), "") for main, group in zip(mains, groups, strict=True)
    ]
    every = [*range(len(groups))]
    failures = [at for at in every if mains[at].kind is Kind.FAILURE]
    sides = _place_labels(every, places, labels)
    are_above = not sides.keys() >= {*failures}
    if are_above:
        others = [at for at in every if at not in failures]
        sides = _place_labels(failures, places, labels) | _place_labels(others, places, labels)
    return [
        EventMark(
            place=place,
            kind=main.kind,
            label=labels[at] if at in sides else "",
            is_left=sides.get(at, False),
            is_above=are_above and at in failures,
            texts=tuple(dict.fromkeys(one.text for one in sorted(group, key=_rank_of))),
            time=clock(group[0].time),
            since=elapsed_text(max(0.0, group[0].time - timeline.start)),
        )
        for at, (main, group, place) in enumerate(zip(mains, groups, places, strict=True))
    ]


def _place_labels(chosen: Sequence[int], places: Sequence[float], labels: Sequence[str]) -> dict[int, bool]:
    """Return the marks whose labels have room on one line, each with True if it stands on the left of its mark."""
    sides, taken = {}, 0.0
    for number, at in enumerate(chosen):
        place, width = places[at], _LETTER * (len(labels[at]) + 3)
        following = places[chosen[number + 1]] if number + 1 < len(chosen) else 1.0
        if labels[at] and width <= following - place:
            sides[at], taken = False, place + width
        elif labels[at] and width <= place - taken:
            sides[at], taken = True, place
        else:
            taken = place
    return sides


def _rank_of(change: Change) -> tuple[int, bool]:
    """Return the order of a change in its mark: the most important kind first, and those with labels."""
    return [*SHAPES].index(change.kind), not change.label


def _group(changes: Iterable[Change], timeline: Timeline) -> Iterator[list[Change]]:
    """Yield groups of changes that are close on the axis, or in two intervals of it next to each other."""
    close = max(_CLOSE * (timeline.end - timeline.start), timeline.width)
    group: list[Change] = []
    for change in changes:
        if group and change.time - group[0].time > close:
            yield group
            group = []
        group.append(change)
    if group:
        yield group
