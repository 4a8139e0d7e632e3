"""A Grafana dashboard as SVG: its panels on their grid, with simple shapes. It is no screenshot of Grafana."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

from kubectl_ddp.report.draw import duration, format_number, scale_of, since, ticks, time_ticks
from tools.pictures.dashboard_panels import Curve, Panel

COLUMN: Final = 40
ROW: Final = 24
GAP: Final = 8
HEAD: Final = 66
PALETTE: Final = ("#3b82c4", "#44aa99", "#c9a227", "#aa4499", "#6fb7e0", "#8a8a2b", "#7a6fd0", "#5f7d8c")
MOST_CURVES: Final = 8
MOST_ROWS: Final = 6

_STYLE: Final = """
text{font:11px system-ui,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif;fill:#24292f}
.paper{fill:#f4f5f7}.card{fill:#fff;stroke:#d8dee4}.small{font-size:10px;fill:#57606a}.h{font-weight:600}
.row{font-size:14px;font-weight:600}.title{font-size:18px;font-weight:700}.big{font-size:22px;font-weight:650}
.area{stroke:#fff;stroke-width:.6}.grid{stroke:#e6eaee}.bar{fill:#e6eaee}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
@media (prefers-color-scheme:dark){text{fill:#e6e8ea}.paper{fill:#0f1215}.card{fill:#181c20;stroke:#30363d}
.area{stroke:#181c20}.small{fill:#a3adb8}.grid{stroke:#2a3037}.bar{fill:#2a3037}}
"""


def dashboard_picture(title: str, panels: Sequence[Panel], *, rows: int) -> str:
    """Return the panels above this row of the grid as SVG."""
    shown = [panel for panel in panels if panel.place[1] + panel.place[3] <= rows]
    height = HEAD + ROW * max(panel.place[1] + panel.place[3] for panel in shown) + GAP
    width = 24 * COLUMN + 2 * GAP
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    said = "Drawn by make picture from a recorded run, not a Grafana screenshot"
    names = ", ".join(panel.title for panel in shown if panel.kind != "row")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
            f"<title id='t'>{escape(title)}. {said}</title><desc id='d'>Panels: {escape(names)}.</desc>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
            f'<text class="title" x="{2 * GAP}" y="30">{escape(title)}</text>',
            f'<text class="small" x="{2 * GAP}" y="50">{said}. Rates are over 15 s, not 5 min.</text>',
            *map(_panel, shown),
            "</svg>\n",
        ]
    )


def _panel(panel: Panel) -> str:
    column, row, width, height = panel.place
    left, top = GAP + COLUMN * column, HEAD + ROW * row
    if panel.kind == "row":
        return f'<text class="row" x="{left + GAP}" y="{top + 17}">{escape(panel.title)}</text>'
    wide, high = COLUMN * width - GAP, ROW * height - GAP
    draw = _DRAW.get(panel.kind, _nothing)
    body = draw(panel, wide - 20, high - 34) if panel.curves else _nothing(panel, wide - 20, high - 34)
    return (
        f'<g transform="translate({left + GAP / 2:g} {top + GAP / 2:g})">'
        f'<rect class="card" width="{wide}" height="{high}" rx="5"/>'
        f'<text class="h" x="10" y="18">{escape(_cut(panel.title, wide - 20))}</text>'
        f'<g transform="translate(10 28)">{body}</g></g>'
    )


def _nothing(_: Panel, width: float, height: float) -> str:
    return f'<text class="small" x="{width / 2:g}" y="{height / 2 + 4:g}" text-anchor="middle">No data</text>'


def _stat(panel: Panel, width: float, height: float) -> str:
    is_name = panel.model["options"].get("textMode") == "name"
    words = " / ".join(
        curve.name if is_name else format_value(curve.values[-1][1], panel.unit(curve.name))
        for curve in panel.curves[:2]
    )
    return f'<text class="big" x="{width / 2:g}" y="{height / 2 + 8:g}" text-anchor="middle">{escape(words)}</text>'


def _timeseries(panel: Panel, width: float, height: float) -> str:
    curves = _finite(panel.curves)[:MOST_CURVES]
    if not curves:
        return _nothing(panel, width, height)
    legend_rows = _legend(curves, width, height)
    left, bottom = 46.0, height - 16 - 14 * legend_rows.count("<g>")
    is_stacked = panel.model["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
    drawn = _stack(curves) if is_stacked else [curve.values for curve in curves]
    scale = scale_of([value for values in drawn for _, value in values], from_zero=True)
    begin, end = panel.span
    span = end - begin

    def path(values: Sequence[tuple[float, float]]) -> str:
        points = [
            f"{left + (width - left) * (moment - begin) / span:.1f} {bottom * (1 - scale.place(value)):.1f}"
            for moment, value in values
        ]
        return "M" + "L".join(points)

    parts = []
    for tick in ticks(scale)[:: 2 if bottom < 90 else 1]:
        y = bottom * (1 - tick.place)
        label = format_value(scale.low + tick.place * (scale.high - scale.low), panel.unit())
        parts.append(f'<line class="grid" x1="{left:g}" x2="{width:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="{left - 5:g}" y="{y + 3:.1f}" text-anchor="end">{escape(label)}</text>')
    for tick in time_ticks(begin, end, most=4):
        x = left + (width - left) * tick.place
        parts.append(f'<text class="small" x="{x:.1f}" y="{bottom + 13:g}" text-anchor="middle">{tick.text}</text>')
    for index, values in reversed([*enumerate(drawn)]):
        if is_stacked:
            x = [left + (width - left) * (moment - begin) / span for moment in (values[-1][0], values[0][0])]
            area = f"{path(values)}L{x[0]:.1f} {bottom:.1f}L{x[1]:.1f} {bottom:.1f}Z"
            parts.append(f'<path class="area" fill="{PALETTE[index]}" d="{area}"/>')
        else:
            parts.append(f'<path class="line" stroke="{PALETTE[index]}" d="{path(values)}"/>')
    return "".join(parts) + legend_rows


def _legend(curves: Sequence[Curve], width: float, height: float) -> str:
    """Return the legend at the bottom, one ``<g>`` per line."""
    lines: list[list[str]] = [[]]
    x = 0.0
    for index, curve in enumerate(curves):
        name = _cut(curve.name or "value", 150)
        if x and x + 20 + 6.2 * len(name) > width:
            lines.append([])
            x = 0.0
        lines[-1].append(
            f'<rect x="{x:g}" y="-8" width="9" height="9" rx="2" fill="{PALETTE[index]}"/>'
            f'<text class="small" x="{x + 13:g}" y="0">{escape(name)}</text>'
        )
        x += 26 + 6.2 * len(name)
    start = height - 14 * (len(lines) - 1)
    return "".join(
        f'<g><g transform="translate(0 {start + 14 * at:g})">{"".join(line)}</g></g>' for at, line in enumerate(lines)
    )


def _stack(curves: Sequence[Curve]) -> list[list[tuple[float, float]]]:
    below: dict[float, float] = {}
    stacked = []
    for curve in curves:
        values = [(moment, value + below.get(moment, 0.0)) for moment, value in curve.values]
        below |= dict(values)
        stacked.append(values)
    return stacked


def _bargauge(panel: Panel, width: float, height: float) -> str:
    curves = sorted(_finite(panel.curves), key=lambda curve: -curve.values[-1][1])[: int(height // 20)]
    if not curves:
        return _nothing(panel, width, height)
    most = max(abs(curve.values[-1][1]) for curve in curves) or 1.0
    parts, bar = [], width - 230
    for index, curve in enumerate(curves):
        value, y = curve.values[-1][1], 20 * index
        length = bar * min(1.0, max(0.0, value) / most)
        parts.append(
            f'<text x="145" y="{y + 12}" text-anchor="end">{escape(_cut(curve.name, 145))}</text>'
            f'<rect class="bar" x="155" y="{y + 2}" width="{bar:g}" height="13" rx="2"/>'
            f'<rect x="155" y="{y + 2}" width="{length:.1f}" height="13" rx="2" fill="{PALETTE[0]}"/>'
            f'<text x="{width:g}" y="{y + 12}" text-anchor="end">{format_value(value, panel.unit(curve.name))}</text>'
        )
    return "".join(parts)


def _table(panel: Panel, width: float, height: float) -> str:
    names, rows = table_rows(panel)
    rows = rows[: min(MOST_ROWS, int((height - 20) // 20))]
    wide = width / max(1, len(names))
    parts = [f'<line class="grid" x1="0" x2="{width:g}" y1="19" y2="19"/>']
    for at, name in enumerate(names):
        parts.append(f'<text class="small h" x="{at * wide:.1f}" y="13">{escape(_cut(name, wide))}</text>')
    for number, row in enumerate(rows):
        for at, name in enumerate(names):
            value = row.get(name, "")
            text = format_value(value, panel.unit(name)) if isinstance(value, float) else value
            parts.append(f'<text x="{at * wide:.1f}" y="{33 + 20 * number}">{escape(_cut(text, wide - 4))}</text>')
    return "".join(parts)


def table_rows(panel: Panel) -> tuple[list[str], list[dict[str, float | str]]]:
    """Return the columns and the rows of a table: the queries joined by their labels, filtered, renamed and ordered."""
    options = {each["id"]: each["options"] for each in panel.model.get("transformations", ())}
    rename, order = (options.get("organize", {}).get(name, {}) for name in ("renameByName", "indexByName"))
    included = options.get("filterFieldsByName", {}).get("include", {}).get("names")
    is_single = len(panel.model["targets"]) == 1
    found: dict[frozenset[tuple[str, str]], dict[str, float | str]] = {}
    for curve in panel.curves:
        labels = {name: value for name, value in curve.labels.items() if name != "__name__"}
        key = frozenset(labels.items())
        row = next((row for other, row in found.items() if key <= other), None)
        row = row if row is not None else found.setdefault(key, dict(labels))
        row["Value" if is_single else f"Value #{curve.query}"] = curve.values[-1][1]
    known = {name for row in found.values() for name in row if included is None or name in included}
    kept = sorted(known, key=lambda name: (order.get(name, len(order)), name))
    rows = [{rename.get(name, name): row[name] for name in kept if name in row} for row in found.values()]
    return [rename.get(name, name) for name in kept], rows


def _lanes(panel: Panel, width: float, height: float) -> str:
    """Return one lane per series, darker where its value is larger."""
    curves = _finite(panel.curves)[: int(height // 18)]
    if not curves:
        return _nothing(panel, width, height)
    low, high = (choose(value for curve in curves for _, value in curve.values) for choose in (min, max))
    begin, end = panel.span
    left, span = 90.0, end - begin
    tall = min(22.0, height / len(curves))
    parts = []
    for lane, curve in enumerate(curves):
        y = lane * tall
        parts.append(
            f'<text x="{left - 8:g}" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{escape(_cut(curve.name, 84))}</text>'
        )
        for value, start, stop in _spells(curve.values, end):
            x, wide = left + (width - left) * (start - begin) / span, (width - left) * (stop - start) / span
            share = (value - low) / (high - low) if high > low else 1.0
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{max(1.0, wide):.1f}" height="{tall - 2:.1f}" '
                f'fill="{PALETTE[0]}" opacity="{0.12 + 0.88 * share:.2f}"/>'
            )
    return "".join(parts)


def _spells(values: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float, float]]:
    """Return value, start and end of each time in which a series hardly changes."""
    spells: list[tuple[float, float, float]] = []
    for (moment, value), following in zip(values, [*(moment for moment, _ in values[1:]), end], strict=True):
        rounded = float(f"{value:.2g}")
        if spells and spells[-1][0] == rounded:
            spells[-1] = (rounded, spells[-1][1], following)
        else:
            spells.append((rounded, moment, following))
    return spells


def _finite(curves: Sequence[Curve]) -> list[Curve]:
    kept = [
        Curve(curve.name, curve.labels, curve.query, [pair for pair in curve.values if math.isfinite(pair[1])])
        for curve in curves
    ]
    return [curve for curve in kept if curve.values]


def format_value(value: float, unit: str) -> str:
    """Format a value in one of Grafana's units.

    >>> format_value(0.421, "percentunit"), format_value(75.0, "s"), format_value(3 * 2**30, "bytes")
    ('42.1%', '1:15 min', '3 GiB')
    """
    if not math.isfinite(value):
        return "-"
    if unit in {"percentunit", "percent"}:
        return f"{value * (100 if unit == 'percentunit' else 1):.3g}%"
    if unit == "s":
        return duration(value) if value < 60 else since(value)
    if unit in {"bytes", "decbytes"}:
        power = min(4, int(math.log2(value) // 10)) if value >= 1 else 0
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    return format_number(value if value.is_integer() else float(f"{value:.3g}"))


def _cut(text: str, width: float) -> str:
    most = max(3, int(width / 6.1))
    return text if len(text) <= most else f"{text[: most - 1]}…"


_DRAW: Final[Mapping[str, Callable[[Panel, float, float], str]]] = {
    "stat": _stat,
    "timeseries": _timeseries,
    "bargauge": _bargauge,
    "table": _table,
    "state-timeline": _lanes,
    "status-history": _lanes,
}
