"""Output of the hang report as text and as the versioned JSON of ``-o json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubectl_ddp.hang.analysis import HangReport
from kubectl_ddp.hang.collector import RankReport
from kubectl_ddp.hang.ras_report import lagging_ranks
from kubectl_ddp.status.job_tables import API_VERSION, state_cell
from kubectl_ddp.util.text_table import NOTHING, Cell, Style, Table, duration

_MOST_ROWS: Final = 32
"""Maximum number of rows; in large jobs most ranks are in the same place."""
_MOST_STACKS: Final = 3


def text(report: HangReport, style: Style) -> str:
    """Return the report as text: the blocking ranks, a table of all ranks, and the stacks of the blocking ranks."""
    return "\n".join(_lines(report, style))


def _lines(report: HangReport, style: Style) -> Iterator[str]:
    state = report.state
    cell = state_cell(state.state)
    yield f"Job {state.name} ({state.where}) is {style.apply_color(cell.text, cell.color)}."
    yield style.apply_color(report.message, "bold") if report.is_hung else report.message
    if report.hang_snapshot.ranks:
        yield ""
        yield from _table(report, style)
    for rank in [rank for rank, _ in report.culprits if rank.status.stack][:_MOST_STACKS]:
        yield ""
        yield f"Rank {rank.status.rank} (pod {rank.pod}, process {rank.pid}), by {rank.stack_from}:"
        yield from (f"  {line}" for line in rank.status.stack.splitlines())
    if report.ended is not None and not report.culprits and report.ended.stack:
        yield ""
        yield f"Rank {report.ended.rank} (pod {report.ended.pod}), before it was ended:"
        yield from (f"  {line}" for line in report.ended.stack.splitlines())
    if report.stacks_missing:
        yield style.apply_color(report.stacks_missing, "dim")
    yield from _named(report, style)
    if report.hang_snapshot.ras:
        yield ""
        yield from (rank.message for rank in lagging_ranks(report.hang_snapshot.ras)[:_MOST_ROWS])
        yield "Report of NCCL (RAS):"
        yield from (f"  {line}" for line in report.hang_snapshot.ras.splitlines())
    for pod, why in sorted(report.hang_snapshot.silent.items()):
        yield style.apply_color(f"Pod {pod} shows no rank: {why}", "dim")


def _table(report: HangReport, style: Style) -> Iterator[str]:
    waited_for = {rank.status.rank for rank, _ in report.culprits}
    table = Table(("RANK", "POD", "STATE", "COLLECTIVE", "WAITING-IN", "STALLED", "LOCATION"))
    ranks = sorted(report.hang_snapshot.ranks, key=lambda rank: (rank.status.rank not in waited_for, rank.status.rank))
    for rank in sorted(ranks[:_MOST_ROWS], key=lambda rank: rank.status.rank):
        status = rank.status
        color = "red" if status.rank in waited_for else ""
        words = (
            *(str(status.rank), rank.pod, str(status.state)),
            *(f"#{status.sequence}" if status.sequence >= 0 else NOTHING, status.waits_in or NOTHING),
            *(f"{status.seconds:.1f}s", status.place or status.section or NOTHING),
        )
        table.rows.append([Cell(word, color) for word in words])
    yield table.render(style)
    if len(ranks) > _MOST_ROWS:
        yield style.apply_color(f"and {len(ranks) - _MOST_ROWS} more; -o json has all", "dim")


def _named(report: HangReport, style: Style) -> Iterator[str]:
    for named in report.hang_snapshot.named:
        killed = f"; killed: {', '.join(map(str, named.killed))}" if named.killed else ""
        ago = duration(max(0.0, report.now - named.time))
        message = "; ".join(named.sentences) or f"ranks that the others wait for: {', '.join(map(str, named.ranks))}"
        words = f"Launcher report ({ago} ago, generation {named.generation}): {message}{killed}"
        yield style.apply_color(words, "dim")


def hang_report_to_dict(report: HangReport) -> dict[str, Any]:
    """Return the report as a JSON object. Times are Unix times; durations are in seconds."""
    return {
        "apiVersion": API_VERSION,
        "kind": "HangReport",
        "job": report.state.name,
        "namespace": report.state.namespace,
        "where": report.state.where,
        "state": str(report.state.state),
        "answer": str(report.analysis.answer),
        "hangs": report.is_hung,
        "sentence": report.message,
        "culprits": [
            {
                **_rank(rank),
                "sentence": sentence,
                "stack": rank.status.stack,
                "stackFrom": rank.stack_from,
            }
            for rank, sentence in report.culprits
        ],
        "ranks": [_rank(rank) for rank in report.hang_snapshot.ranks],
        "endedBy": None
        if report.ended is None
        else {
            "rank": report.ended.rank,
            "pod": report.ended.pod,
            "message": report.ended.message,
            "stack": report.ended.stack,
            "time": report.ended.timestamp,
        },
        "launcherNamed": [
            {
                "time": named.time,
                "generation": named.generation,
                "ranks": list(named.ranks),
                "killed": list(named.killed),
                "sentences": list(named.sentences),
            }
            for named in report.hang_snapshot.named
        ],
        "stacksMissing": report.stacks_missing,
        "silentPods": dict(report.hang_snapshot.silent),
        "ras": report.hang_snapshot.ras,
        "exitCode": report.code,
        "time": report.now,
    }


def _rank(rank: RankReport) -> dict[str, Any]:
    status = rank.status
    return {
        "rank": status.rank,
        "localRank": status.local_rank,
        "pod": rank.pod,
        "pid": rank.pid,
        "state": str(status.state),
        "stands_seconds": status.seconds,
        "usual_seconds": rank.usual,
        "limit_seconds": status.limit,
        "section": status.section,
        "sequence": status.sequence if status.sequence >= 0 else None,
        "waitsIn": status.waits_in,
        "place": status.place,
    }
