"""Marks of events on the time axis: events close to each other share one mark, and labels never overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.report.scale import clock, moment
from kubectl_ddp.report.time_series import Change, Kind
from kubectl_ddp.report.timeline import Timeline

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
    sides = _sides(every, places, labels)
    are_above = not sides.keys() >= {*failures}
    if are_above:
        sides = _sides(failures, places, labels) | _sides([at for at in every if at not in failures], places, labels)
    return [
        EventMark(
            place=place,
            kind=main.kind,
            label=labels[at] if at in sides else "",
            is_left=sides.get(at, False),
            is_above=are_above and at in failures,
            texts=tuple(dict.fromkeys(one.text for one in sorted(group, key=_rank_of))),
            time=clock(group[0].time),
            since=moment(max(0.0, group[0].time - timeline.start)),
        )
        for at, (main, group, place) in enumerate(zip(mains, groups, places, strict=True))
    ]


def _sides(chosen: Sequence[int], places: Sequence[float], labels: Sequence[str]) -> dict[int, bool]:
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
