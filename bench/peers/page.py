"""``python -m bench.peers.page [DIR]`` writes docs/peers.md and docs/assets/peers.svg from results of ``bench peers``.

Only the whole measurement counts, not ``--quick``. Where a peer is ahead of this project, the page says so first.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from bench.measurements.peers import OUT, REPEATS, results
from bench.peers.peer import FAULTS, REQUIREMENTS, ROOT, Peer, peers

FIGURES: Final = {
    "any_seconds": "any rank, s",
    "all_seconds": "all ranks, s",
    "pause_seconds": "longest pause, s",
    "again_steps": "steps done again",
    "lost_samples": "samples lost",
    "repeated_samples": "samples repeated",
    "goodput": "goodput",
}
COSTS: Final = {"memory_bytes": (1e-6, "memory, MB"), "cpu_seconds_per_step": (1e3, "processor time per step, ms")}
OURS: Final = {False: "ours_plain", True: "ours_elastic"}
"""Whether a peer needs a change of the script → which of ours it is compared with."""
NONE: Final = "\N{EN DASH}"
Results = list[dict[str, Any]]


def values(found: Results, key: str) -> list[float]:
    """Return the values of a figure in the runs that have it."""
    return [run[key] for run in found if run.get(key) is not None]


def shown(numbers: Sequence[float], scale: float = 1.0) -> str:
    """Return the median and the range."""
    if not numbers:
        return NONE
    low, middle, high = (f"{scale * x:.3g}" for x in (min(numbers), statistics.median(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low}{NONE}{high})"


def select(runs: Results, name: str, fault: str, megabytes: int = 1, *, fast: bool = True) -> Results:
    """Return the runs of a cell."""
    wanted = {"peer": name, "fault": fault, "megabytes": megabytes, "fast": fast}
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def ahead(runs: Results, known: dict[str, Peer]) -> list[str]:
    """Return a line for each figure in which a peer is ahead of ours, or survives a fault that ours does not."""
    lines = []
    for name in (name for name in known if name not in OURS.values()):
        ours = OURS[known[name].needs_change]
        for fault in FAULTS:
            for megabytes in sorted({run["megabytes"] for run in runs}):
                theirs, own = (select(runs, who, fault, megabytes) for who in (name, ours))
                for key, what in FIGURES.items():
                    a, b = values(theirs, key), values(own, key)
                    less, more = sorted((statistics.median(a), statistics.median(b))) if a and b else (0, 0)
                    better = statistics.median(a) == (more if key == "goodput" else less) if a and b else bool(a)
                    if better and (not b or less != more):
                        lines.append(
                            f"- {known[name].title}: {fault.replace('_', ' ')}, {megabytes} MB, {what}: "
                            f"{shown(a)}; {known[ours].title}: {shown(b)}."
                        )
    return lines


def table(runs: Results, known: dict[str, Peer], fault: str, megabytes: int, *, fast: bool = True) -> list[str]:
    """Return the table of one fault."""
    lines = [f"| | recovered | {' | '.join(FIGURES.values())} | weights |", "|---" * (len(FIGURES) + 3) + "|"]
    for name, peer in known.items():
        found = select(runs, name, fault, megabytes, fast=fast)
        if reason := next((run["cannot"] for run in found if "cannot" in run), ""):
            lines.append(f"| {peer.title} | {NONE} {reason} " + f"| {NONE} " * (len(FIGURES) + 1) + "|")
        elif found:
            whole = len(values(found, "all_seconds"))
            cells = [shown(values(found, key)) for key in FIGURES]
            difference = values(found, "weights_difference")
            same = difference and all(run.get("weights_equal") for run in found)
            weights = "same bits" if same else f"differ by {max(difference):.1g}" if difference else NONE
            lines.append(f"| {peer.title} | {whole} of {len(found)} | {' | '.join(cells)} | {weights} |")
    return lines if len(lines) > 2 else []


def bars(runs: Results, known: dict[str, Peer]) -> str:
    """Return an SVG with a bar per peer and fault: median seconds until all ranks step, with the range."""
    rows, scale, height = [], 8.0, 16
    drawn = [fault for fault in FAULTS if fault != "storm" and any(select(runs, name, fault) for name in known)]
    y = 20
    for fault in drawn:
        rows.append(f'<text x="0" y="{y}" font-weight="bold">{fault.replace("_", " ")}</text>')
        for name, peer in known.items():
            y += height
            seconds = values(select(runs, name, fault), "all_seconds")
            rows.append(f'<text x="8" y="{y}">{escape(peer.title)}</text>')
            if seconds:
                middle = 250 + scale * statistics.median(seconds)
                low, high = 250 + scale * min(seconds), 250 + scale * max(seconds)
                rows.append(f'<rect x="250" y="{y - 9}" width="{middle - 250:.1f}" height="9" fill="#4477aa"/>')
                rows.append(f'<path d="M{low:.1f} {y - 4.5}H{high:.1f}" stroke="#222" stroke-width="2"/>')
            rows.append(f'<text x="{(high if seconds else 250) + 6:.1f}" y="{y}">{shown(seconds)}</text>')
        y += 28
    style = 'font-family="sans-serif" font-size="12"'
    title = "Seconds until all ranks have committed a step after a fault: median and range; gloo, two cores"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {y}" {style}><title>{title}</title>',
            *rows,
            "</svg>\n",
        ]
    )


def page(runs: Results, known: dict[str, Peer]) -> str:
    """Return the page."""
    loads = values(runs, "load")
    better = ahead(runs, known) or ["Nothing in these figures."]
    lines = [
        "# Faults, beside other launchers",
        "",
        "For engineers who compare tools. Afterwards you know what each tool does with the same faults.",
        "",
        "## What the others do better",
        "",
        *better,
        "",
        "## Method",
        "",
        f"Conditions: gloo, {runs[0]['cores']} cores, two nodes of one worker on one machine, no GPU",
        f"([status](status.md)). Load of the machine when a run began: {shown(loads)}. torchrun and `kubectl ddp` use",
        f"torch {importlib.metadata.version('torch')}. Runs per cell: up to {REPEATS}, in random order. Cells show",
        "median (range). All tools run the same model, data and loop: `bench/peers/loops/plain.py`. It saves every 10",
        "steps (1 MB of state) or 100 steps (500 MB). Collectives have a timeout of 10 s. A node whose agent has died",
        "starts again after 1 s, except where the node is lost. A run has recovered when every rank has committed a",
        "step, within 60 s. Each run keeps its logs in `build/bench-peers`.",
        "",
        "| | version | settings | also runs | lines added | source |",
        "|---|---|---|---|---|---|",
    ]
    for peer in known.values():
        cells = (peer.title, _version(peer), peer.settings, peer.beside, str(peer.added_lines()), peer.source)
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Cost without faults",
        "",
        f"| | {' | '.join(what for _, what in COSTS.values())} |",
        "|---|---|---|",
    ]
    for name, peer in known.items():
        found = [run for run in runs if run["peer"] == name and run["megabytes"] == 1]
        costs = (shown(values(found, key), scale) for key, (scale, _) in COSTS.items())
        lines.append(f"| {peer.title} | {' | '.join(costs)} |")
    lines += [
        "",
        "Memory is proportional: a page that processes share counts once.",
        "",
        "![Recovery](assets/peers.svg)",
    ]
    for fault in FAULTS:
        for megabytes in sorted({run["megabytes"] for run in runs}):
            for fast in (True, False):
                if rows := table(runs, known, fault, megabytes, fast=fast):
                    kind = "" if fast else ", default settings"
                    lines += ["", f"## {fault.replace('_', ' ').capitalize()}, {megabytes} MB{kind}", "", *rows]
    lines += ["", "## Changes of the loop"]
    for peer in known.values():
        if peer.needs_change:
            lines += ["", f"### {peer.title}", "", "```diff", *peer.diff(), "```"]
    lines += [
        *("", "## Run it again", "", "`make bench-peers bench BENCH=peers`, then `python -m bench.peers.page`."),
        *("", "## Add a peer", "", "Add a module to `bench/peers/launches`; `bench/peers/peer.py` describes it."),
    ]
    return "\n".join(lines) + "\n"


def _version(peer: Peer) -> str:
    if not peer.environment:
        return ""
    pins = (REQUIREMENTS / f"{peer.environment}.txt").read_text().splitlines()
    return ", ".join(pin for pin in pins if pin.startswith(("torch", "ray=", "nvidia-resiliency")))


def main() -> int:
    """Write both files."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    runs = [run for run in results(out) if not run["quick"]]
    if not runs:
        print(f"bench.peers.page: {out} has no results; run `python -m bench peers`.", file=sys.stderr)
        return 1
    known = peers()
    (ROOT / "docs" / "peers.md").write_text(page(runs, known))
    (ROOT / "docs" / "assets" / "peers.svg").write_text(bars(runs, known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
