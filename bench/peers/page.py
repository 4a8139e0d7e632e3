"""``python -m bench.peers.page [DIR...]`` writes docs/peers.md, its picture and the set-ups.

With folders, it first collects their results in docs/measurements. A cell that the whole measurement has not reached is
shown with its run of ``--quick``. Where a peer is ahead of this project, the page says so first.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from bench.measurements.peers import REPEATS, load_results
from bench.peers.peer import FAULTS, REQUIREMENTS, ROOT, Peer, load_peers

DOCS: Final = ROOT / "docs"
MEASURED: Final = {quick: DOCS / "measurements" / f"peers{'-quick' * quick}.json" for quick in (False, True)}
"""Whether the runs are of ``--quick`` → their file."""
FIGURES: Final = {
    "any_seconds": "any rank, s",
    "all_seconds": "all ranks, s",
    "again_steps": "steps again",
    "lost_samples": "samples lost",
    "repeated_samples": "samples repeated",
    "goodput": "goodput",
}
STORM: Final = frozenset({"lost_samples", "repeated_samples", "goodput"})
"""Figures of a storm; the others are of a single fault."""
COSTS: Final = {"memory_bytes": (1e-6, "memory, MB"), "cpu_seconds_per_step": (1e3, "CPU per step, ms")}
PLAIN, ELASTIC = "ours_plain", "ours_elastic"
NONE: Final = "\N{EN DASH}"
NOTABLE: Final = 1.05
"""Medians that differ by less than this factor count as equal."""

Run = dict[str, Any]
Results = list[Run]


def figure_values(found: Results, key: str) -> list[float]:
    """Return the values of a figure in the runs that have it."""
    return [run[key] for run in found if run.get(key) is not None]


def format_number(number: float) -> str:
    """Return a number with three digits at least."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def format_range(numbers: Sequence[float], scale: float = 1.0, *, between: str = " ") -> str:
    """Return the median and the range."""
    if not numbers:
        return NONE
    low, middle, high = (format_number(scale * x) for x in (min(numbers), statistics.median(numbers), max(numbers)))
    return middle if low == high else f"{middle}{between}({low}{NONE}{high})"


def format_comparison(peer_values: Sequence[float], own_values: Sequence[float], scale: float = 1.0) -> str:
    """Return both medians."""
    a, b = (
        format_number(scale * statistics.median(numbers)) if numbers else NONE for numbers in (peer_values, own_values)
    )
    return f"{a}/{b}"


def select_runs(runs: Results, name: str, fault: str, megabytes: int = 1, *, fast: bool = True) -> Results:
    """Return the runs of a cell: those of the whole measurement, else those of ``--quick``."""
    wanted = {"peer": name, "fault": fault, "megabytes": megabytes, "fast": fast}
    found = [run for run in runs if all(run[key] == value for key, value in wanted.items())]
    return [run for run in found if not run["quick"]] or found


def is_better(peer_values: Sequence[float], own_values: Sequence[float], *, more: bool = False) -> bool:
    """Return whether the peer's median is notably better, or only the peer has the figure."""
    if not peer_values or not own_values:
        return bool(peer_values)
    a, b = statistics.median(peer_values), statistics.median(own_values)
    return a > NOTABLE * b if more else b > NOTABLE * a


def better_peer_rows(runs: Results, known: dict[str, Peer]) -> list[str]:
    """Return a row for each peer and figure in which it is ahead of ours, or survives what ours does not.

    Each is compared with ``elastic.run``, and one that needs no change of the script also with the plain script.
    """
    sizes = sorted({run["megabytes"] for run in runs})
    cells = [(fault, size, fast) for fast in (True, False) for fault in FAULTS for size in sizes]
    rows = []
    for name, peer in known.items():
        for own_name in () if name in {PLAIN, ELASTIC} else (ELASTIC,) if peer.needs_change else (PLAIN, ELASTIC):
            found = []
            for fault, size, fast in cells:
                peer_runs, own_runs = (select_runs(runs, who, fault, size, fast=fast) for who in (name, own_name))
                cell = f"{fault.replace('_', ' ')}, {size} MB" + ", default settings" * (not fast)
                for key in FIGURES if fast else ("all_seconds",):
                    if key == "again_steps" and peer.loop == known[own_name].loop:
                        continue  # the same script saves at the same steps, so this is chance
                    a, b = figure_values(peer_runs, key), figure_values(own_runs, key)
                    if own_runs and (fault != "storm" or key in STORM) and is_better(a, b, more=key == "goodput"):
                        found.append(f"{cell}, {FIGURES[key]}: {format_comparison(a, b)}")
            for key, (scale, what) in COSTS.items():
                a, b = (figure_values(small_state_runs(runs, who), key) for who in (name, own_name))
                if b and is_better(a, b):
                    found.append(f"{what}: {format_comparison(a, b, scale)}")
            if found:
                rows.append(f"|{peer.title}|{known[own_name].title}|{'<br>'.join(found)}|")
    return rows


def small_state_runs(runs: Results, name: str) -> Results:
    """Return the runs of a peer that began with both nodes and the small state, without ``--quick`` if there are."""
    found = [run for fault in FAULTS if fault != "node_joins" for run in select_runs(runs, name, fault)]
    return [run for run in found if not run["quick"]] or found


def format_cell(found: Results, notes: list[str], reasons: Iterable[str]) -> str:
    """Return the seconds until all ranks trained; runs that recovered, if not all did; a note if none did."""
    seconds = figure_values(found, "all_seconds")
    if not seconds and (reason := next(filter(None, reasons), "")):
        if reason not in notes:
            notes.append(reason)
        return f"{NONE}[{notes.index(reason) + 1}](#method)"
    if not found:
        return ""
    runs = [] if len(found) == len(seconds) == REPEATS else [f"{len(seconds)}/{len(found)}"]
    return "<br>".join([format_range(seconds, between="<br>"), *runs])


def recovery_table(runs: Results, known: dict[str, Peer], notes: list[str], *, fast: bool = True) -> list[str]:
    """Return a table with a column per fault and size of the state."""
    sizes = sorted({run["megabytes"] for run in runs})
    columns = [
        (fault, size)
        for fault in FAULTS
        for size in sizes
        if fault != "storm" and any(select_runs(runs, name, fault, size, fast=fast) for name in known)
    ]
    titles = [fault.replace("_", " ") + f", {size} MB" * (size > sizes[0]) for fault, size in columns]
    lines = [f"||{'|'.join(titles)}|", "|---" * (len(columns) + 1) + "|"]
    for name, peer in known.items():
        cells = [
            format_cell(
                select_runs(runs, name, fault, size, fast=fast),
                notes,
                (peer.cannot.get(fault, ""), peer.limits.get(fault, "")),
            )
            for fault, size in columns
        ]
        if any(cells):
            lines.append(f"|{peer.title}|{'|'.join(cells)}|")
    return lines if columns else []


def cost_table(runs: Results, known: dict[str, Peer]) -> list[str]:
    """Return the table of what a peer needs, loses and repeats."""
    costs_named = "|".join(what for _, what in COSTS.values())
    lines = [
        f"||version|goodput|steps again|samples lost|repeated|weights|{costs_named}|lines added|also runs|",
        "|---" * 11 + "|",
    ]
    for name, peer in known.items():
        found = [run for fault in FAULTS for size in (1, 500) for run in select_runs(runs, name, fault, size)]
        difference = figure_values(found, "weights_difference")
        same = all(run["weights_equal"] for run in found if "weights_equal" in run)
        goodput = figure_values(select_runs(runs, name, "storm"), "goodput")
        small = small_state_runs(runs, name)
        lines.append(
            f"|[{peer.title}]({peer.source})|{_version(peer)}|{format_range(goodput)}|"
            + "".join(
                f"{max(figure_values(found, key), default=NONE)}|"
                for key in ("again_steps", "lost_samples", "repeated_samples")
            )
            + ("same bits|" if difference and same else f"±{max(difference):.0e}|" if difference else f"{NONE}|")
            + "".join(
                f"{format_range(figure_values(small, key), scale, between='<br>')}|"
                for key, (scale, _) in COSTS.items()
            )
            + f"{peer.added_lines()}|{peer.beside}|"
        )
    return lines


def recovery_svg(runs: Results, known: dict[str, Peer]) -> str:
    """Return an SVG with a bar per peer and fault: median seconds until all ranks step, with the range."""
    rows, scale, height = [], 8.0, 16
    drawn = [fault for fault in FAULTS if fault != "storm" and any(select_runs(runs, name, fault) for name in known)]
    y = 20
    for fault in drawn:
        rows.append(f'<text x="0" y="{y}" font-weight="bold">{fault.replace("_", " ")}</text>')
        for name, peer in known.items():
            y += height
            seconds = figure_values(select_runs(runs, name, fault), "all_seconds")
            rows.append(f'<text x="8" y="{y}">{escape(peer.title)}</text>')
            if seconds:
                middle = 330 + scale * statistics.median(seconds)
                low, high = 330 + scale * min(seconds), 330 + scale * max(seconds)
                rows.append(f'<rect x="330" y="{y - 9}" width="{middle - 330:.1f}" height="9" fill="#4477aa"/>')
                rows.append(f'<path d="M{low:.1f} {y - 4.5}H{high:.1f}" stroke="#222" stroke-width="2"/>')
            rows.append(f'<text x="{(high if seconds else 330) + 6:.1f}" y="{y}">{format_range(seconds)}</text>')
        y += 28
    style = 'font-family="sans-serif" font-size="12"'
    title = "Seconds until all ranks have committed a step after a fault: median and range; gloo, two cores"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {y}" {style}><title>{title}</title>',
            f'<rect width="960" height="{y}" fill="#fff"/>',
            *rows,
            "</svg>\n",
        ]
    )


def peer_settings(known: dict[str, Peer]) -> str:
    """Return version, settings, source and change of the plain loop of each peer."""
    lines = []
    for peer in known.values():
        lines += [f"{peer.title} {_version(peer)}".rstrip(), f"Settings: {peer.settings}", f"Source: {peer.source}"]
        lines += ["", *(peer.diff() if peer.needs_change else ["The script is unchanged."]), "", ""]
    return "\n".join(lines)


def render_markdown(runs: Results, known: dict[str, Peer]) -> str:
    """Return the page."""
    notes: list[str] = []
    full_runs = [run for run in runs if not run["quick"]]
    load, hours = format_range(figure_values(full_runs, "load")), sum(figure_values(full_runs, "wall_seconds")) / 3600
    tables = recovery_table(runs, known, notes)
    if rows := recovery_table(runs, known, notes, fast=False):
        tables += ["", "### Default settings", "", *rows]
    lines = [
        "# Faults beside other launchers",
        "",
        "For engineers who compare launchers: the same faults for each, measured with gloo on",
        f"{runs[0]['cores']} CPU cores, not on GPUs ([status](status.md)). `ddp-launch` and `elastic.run` are ours,",
        "`ft_launcher` and `inprocess.Wrapper` NVRx.",
        "",
        "## Where others are ahead",
        "",
        *(["||of ours|medians|", "|---|---|---|", *rows] if (rows := better_peer_rows(runs, known)) else ["Nowhere."]),
        "",
        "## Seconds until all ranks train",
        "",
        f"Median (range) of {REPEATS} runs with 1 MB of state. Else, the fraction is runs that recovered of all runs.",
        "",
        "![Seconds from a fault until all ranks train](assets/peers.svg)",
        "",
        *tables,
        "",
        "## Samples and costs",
        "",
        "The worst run over all faults. Goodput: share of the undisturbed steps with a fault every 10 s, for five",
        "minutes, or 20 s in quick runs. Memory, CPU: without faults.",
        "",
        *cost_table(runs, known),
        "",
        "## Method",
        "",
        "Two nodes of one worker on one machine run one loop or the smallest change of it, with the fastest",
        "[settings](assets/peers.txt) found for each peer, in random order. It saves every 10 steps (500 MB: 100).",
        "Collectives time out after 10 s; less would shorten hangs. Workers die with their agent; its node returns",
        "after 1 s, unless lost. A run fails after 60 s (quick: 50 s). A fault from which a peer does not recover, as",
        f"its documents say, is injected once. Load: {load}, from 5 on of idle priority.",
        f"The [{len(full_runs)} runs](measurements/peers.json) took {format_number(hours)} hours.",
        f"Quick runs: [{len(runs) - len(full_runs)}](measurements/peers-quick.json).",
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, 1)),
        "",
        "## Repeat",
        "",
        "`make bench-peers bench BENCH=peers` starts no run after three hours, `BENCH='peers --quick'` none after",
        "18 minutes. Run it again to continue.",
        "`python -m bench.peers.page build/bench-peers` writes this page. A peer is [a file](../bench/peers/peer.py).",
    ]
    return "\n".join(lines) + "\n"


def _version(peer: Peer) -> str:
    name = peer.title if peer.title == "torchrun" else peer.environment
    if not name:
        return ""
    pins = ROOT / "constraints.txt" if name == "torchrun" else REQUIREMENTS / f"{name}.txt"
    package = {"torchrun": "torch", "nvrx": "nvidia-resiliency-ext"}.get(name, name)
    found = re.search(rf"^(?:# wheel: )?{package}==(\S+)", pins.read_text(), re.MULTILINE)
    return found[1] if found else ""


def read_results() -> Results:
    """Return all runs in docs/measurements."""
    return [run for file in MEASURED.values() if file.exists() for run in json.loads(file.read_text())]


def main() -> int:
    """Write the page, its picture and the set-ups."""
    collected = [run for folder in sys.argv[1:] for run in load_results(Path(folder))]
    for quick, file in MEASURED.items():
        if found := sorted(json.dumps(run) for run in collected if run["quick"] is quick):
            file.write_text("[\n" + ",\n".join(found) + "\n]\n")
    runs, known = read_results(), load_peers()
    if not runs:
        print("bench.peers.page: there are no results; run `python -m bench peers`.", file=sys.stderr)
        return 1
    (DOCS / "peers.md").write_text(render_markdown(runs, known))
    (DOCS / "assets" / "peers.svg").write_text(recovery_svg(runs, known))
    (DOCS / "assets" / "peers.txt").write_text(peer_settings(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
