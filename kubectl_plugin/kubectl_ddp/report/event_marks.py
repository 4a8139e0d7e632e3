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
_LETTER: Final = 0.0145
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
    """Return the marks of these changes, which ascend in time."""
    groups = list(_group(changes, timeline))
    places = [timeline.place(group[0].time) for group in groups]
    marks, taken = [], 0.0
    for at, (group, place) in enumerate(zip(groups, places, strict=True)):
        main = min(group, key=_rank_of)
        label = next((one.label for one in (main, *group) if one.label), "")
        width = _LETTER * (len(label) + 3)
        room = (places[at + 1] if at + 1 < len(places) else 1.0) - place
        is_left = width > room and place - taken > width
        if width > room and not is_left:
            label = ""
        taken = place if is_left or not label else place + width
        marks.append(
            EventMark(
                place=place,
                kind=main.kind,
                label=label,
                is_left=is_left,
                texts=tuple(dict.fromkeys(one.text for one in sorted(group, key=_rank_of))),
                time=clock(group[0].time),
                since=moment(max(0.0, group[0].time - timeline.start)),
            )
        )
    return marks


def _rank_of(change: Change) -> int:
    return [*SHAPES].index(change.kind)


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
