"""Two runs side by side: their results, and the settings that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubectl_ddp.observe.job_results import JobRecord
from kubectl_ddp.status.termination_message import restart_count
from kubectl_ddp.util.text_table import NOTHING, Cell, Table, count, duration, number


def comparison_table(one: JobRecord, other: JobRecord) -> Table:
    """Return the results of two runs, and below them each setting that differs."""
    titles = [record.name if one.name != other.name else f"{record.name} {record.run}" for record in (one, other)]
    rows = [*_results(one, other), *_setting_changes(one.settings, other.settings)]
    return Table(["", *titles], [[Cell(name), Cell(left), Cell(right)] for name, left, right in rows])


def _results(one: JobRecord, other: JobRecord) -> Iterator[tuple[str, str, str]]:
    both = (one, other)

    def row(name: str, texts: list[str]) -> tuple[str, str, str]:
        return name, texts[0], texts[1]

    yield row("status", [record.state for record in both])
    yield row("nodes", [record.nodes for record in both])
    yield row("duration", [duration(record.seconds) for record in both])
    yield row("step", [count(record.step) for record in both])
    yield row("loss", [number(record.loss) for record in both])
    yield row("samples/s", [number(record.throughput) for record in both])
    yield row("restarts", [str(restart_count(record.restarts)) for record in both])
    for name in sorted(one.values.keys() | other.values.keys()):
        yield row(name, [number(record.values.get(name)) for record in both])


def _setting_changes(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield settings that differ; of the arguments of the program, each flag that differs."""
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) == other.get(key):
            continue
        if key == "args":
            yield from _argument_changes(one.get(key) or [], other.get(key) or [])
        else:
            yield key, _text(one.get(key)), _text(other.get(key))


def _argument_changes(one: list[Any], other: list[Any]) -> Iterator[tuple[str, str, str]]:
    left, right = _flags(one), _flags(other)
    for flag in dict.fromkeys([*left, *right]):
        if left.get(flag) != right.get(flag):
            yield flag, left.get(flag, NOTHING), right.get(flag, NOTHING)


def _flags(words: list[Any]) -> dict[str, str]:
    """Return flags with their values, all of a repeated one; other words are together the argument ``args``."""
    flags: dict[str, list[str]] = {}
    current = "args"
    for word in map(str, words):
        if word.startswith("-") and not _is_number(word):
            current, equals, value = word.partition("=")
            flags.setdefault(current, []).extend([value] if equals else [])
        else:
            flags.setdefault(current, []).append(word)
    return {flag: " ".join(values) or "given" for flag, values in flags.items()}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
