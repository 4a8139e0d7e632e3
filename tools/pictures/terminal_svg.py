"""Terminal output as SVG: one screen, or an animation of several. It needs no fonts and no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

CELL_WIDTH: Final = 8.0
LINE_HEIGHT: Final = 18
FONT_SIZE: Final = 13
MARGIN: Final = 14
TITLE_HEIGHT: Final = 34

_COLORS: Final = {
    "30": "#0d1117",
    "31": "#ff7b72",
    "32": "#56d364",
    "33": "#e3b341",
    "34": "#79b8ff",
    "35": "#d2a8ff",
    "36": "#56d4dd",
    "37": "#e6edf3",
    "2": "#8b949e",
}
"""Color of letters by SGR code, on the dark background that the picture always has."""
_GROUNDS: Final = {
    "41": "#f85149",
    "42": "#3fb950",
    "43": "#d29922",
    "44": "#1f6feb",
    "45": "#bc8cff",
    "46": "#39c5cf",
    "47": "#b1bac4",
}
"""Color behind letters by SGR code."""
_STYLE: Final = (
    f"text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "fill:#e6edf3;white-space:pre}.note{fill:#ffa07a;font-weight:bold}.title{fill:#8b949e}"
)
_PIECE: Final = re.compile(r"\x1b\[([0-9;]*)m|([^\x1b]+)|\x1b\[[0-9;?]*[A-Za-z]|\x1b.")
_WORDS: Final = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True, slots=True)
class Frame:
    """One screen of an animation."""

    seconds: float
    """Time for which it is shown."""
    lines: tuple[str, ...]
    """Lines with ANSI colors."""
    note: str = ""
    """Words below the screen; a note is an event of the recording."""


@dataclass(frozen=True, slots=True)
class _Run:
    column: int
    text: str
    color: str
    background: str
    bold: bool


def terminal_picture(title: str, lines: Sequence[str], *, described: str) -> str:
    r"""Return one screen as SVG.

    >>> "fill:#ff7b72" in terminal_picture("ls", ["a \x1b[31mb\x1b[0m"], described="Two files")
    True
    """
    return terminal_animation(title, [Frame(1.0, tuple(lines))], described=described)


def terminal_animation(title: str, frames: Sequence[Frame], *, described: str) -> str:
    """Return the frames as one SVG that repeats. Readers who prefer no motion see the last frame with a note."""
    has_notes = any(frame.note for frame in frames)
    rows = max(len(frame.lines) for frame in frames) + (2 if has_notes else 0)
    columns = max([len(title) + 12, *(_width(line) for frame in frames for line in frame.lines)])
    width, height = columns * CELL_WIDTH + 2 * MARGIN, rows * LINE_HEIGHT + TITLE_HEIGHT + 1.5 * MARGIN
    lines = _Lines()
    bodies = [_frame_body(frame, rows, lines) for frame in frames]
    styles, still = _timing(frames) if len(frames) > 1 else ("", 0)
    shown = [
        f'<g class="f{" still" if index == still else ""}" id="f{index}">{body}</g>'
        for index, body in enumerate(bodies)
    ]
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    dots = (
        f'<circle cx="{20 + 18 * at}" cy="17" r="5.5" fill="{color}"/>'
        for at, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
            f"<title id='t'>{escape(title)}</title><desc id='d'>{escape(described)}</desc>",
            f"<style>{_STYLE}{styles}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#0d1117" stroke="#30363d"/>',
            *dots,
            f'<text class="title" x="{width / 2:g}" y="22" text-anchor="middle">{escape(title)}</text>',
            f"<defs>{lines.defined()}</defs>",
            *shown,
            "</svg>\n",
        ]
    )


class _Lines:
    """Lines that have been drawn; each is defined once, and used in many frames."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def use(self, line: str, row: int) -> str:
        """Return a reference to a line in a row; nothing for an empty one."""
        runs = list(_runs(line))
        if not runs:
            return ""
        grounds = "".join(_ground_svg(run) for run in runs if run.background)
        body = f"{grounds}<text>{''.join(_run_svg(run) for run in runs)}</text>"
        name = self._ids.setdefault(body, f"l{len(self._ids)}")
        return f'<use href="#{name}" y="{_y(row)}"/>'

    def defined(self) -> str:
        return "".join(f'<g id="{name}">{body}</g>' for body, name in self._ids.items())


def _frame_body(frame: Frame, rows: int, lines: _Lines) -> str:
    body = "".join(lines.use(line, row) for row, line in enumerate(frame.lines))
    if frame.note:
        body += f'<text class="note" x="{MARGIN}" y="{_y(rows - 1)}">{escape(frame.note)}</text>'
    return body


def _run_svg(run: _Run) -> str:
    style = (f"fill:{run.color};" if run.color else "") + ("font-weight:bold" if run.bold else "")
    attribute = f' style="{style.rstrip(";")}"' if style else ""
    return f'<tspan x="{MARGIN + run.column * CELL_WIDTH:g}"{attribute}>{escape(run.text)}</tspan>'


def _ground_svg(run: _Run) -> str:
    x, width = MARGIN + run.column * CELL_WIDTH, len(run.text) * CELL_WIDTH
    size = f'width="{width:g}" height="{LINE_HEIGHT}"'
    return f'<rect x="{x:g}" y="{-0.78 * LINE_HEIGHT:g}" {size} fill="{run.background}"/>'


def _timing(frames: Sequence[Frame]) -> tuple[str, int]:
    """Return the styles that show one frame after another, and the index of the frame to show without motion."""
    total_seconds = sum(frame.seconds for frame in frames)
    styles, begun = [], 0.0
    for index, frame in enumerate(frames):
        start, end = 100 * begun / total_seconds, 100 * (begun + frame.seconds) / total_seconds
        before = "0%{visibility:hidden}" if index else ""
        after = f"{end:.3f}%{{visibility:hidden}}" if index + 1 < len(frames) else ""
        styles.append(f"@keyframes k{index}{{{before}{start:.3f}%{{visibility:visible}}{after}}}")
        styles.append(f"#f{index}{{animation:k{index} {total_seconds:.2f}s step-end infinite}}")
        begun += frame.seconds
    noted = [index for index, frame in enumerate(frames) if frame.note]
    still = noted[len(noted) // 2] if noted else len(frames) - 1
    calm = "@media (prefers-reduced-motion:reduce){.f{animation:none!important}.still{visibility:visible}}"
    return ".f{visibility:hidden}" + "".join(styles) + calm, still


def _runs(line: str) -> Iterator[_Run]:
    """Yield the words of a line with column and look; gaps of two spaces separate runs, so that columns align."""
    column, color, background, bold = 0, "", "", False
    for codes, text in ((found[1], found[2]) for found in _PIECE.finditer(line)):
        if text:
            for words in _WORDS.finditer(text):
                yield _Run(column + words.start(), words[0], color, background, bold)
            column += len(text)
        elif codes is not None:
            for code in codes.split(";"):
                if code in {"", "0"}:
                    color, background, bold = "", "", False
                bold = bold or code == "1"
                color = _COLORS.get(code, color)
                background = _GROUNDS.get(code, background)


def _width(line: str) -> int:
    return max((run.column + len(run.text) for run in _runs(line)), default=0)


def _y(row: int) -> float:
    return TITLE_HEIGHT + MARGIN / 2 + LINE_HEIGHT * (row + 0.8)
