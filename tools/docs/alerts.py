"""Alerts in the schema of the chart ddp-platform, in the index of the runbooks, and in the navigation of the site.

The rules of the chart are their source: the order of the files and of the alerts in them, and their summaries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from tools.docs.tables import with_tables

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "ddp-platform"
INDEX: Final = ROOT / "docs" / "runbooks" / "README.md"
TOPICS: Final = {
    "progress": "Progress",
    "ranks": "Ranks that others wait for",
    "recovery": "Restarts and recovery",
    "checkpoints": "Checkpoints",
    "devices": "GPUs and memory",
    "exporter": "Metrics",
}
"""File of rules → heading in the index."""
_ENUM: Final = re.compile(r'(?<="alerts": \{\n)( +)"type": "object",\n +"propertyNames": \{\n +"enum": \[\n[^\]]*\]')
_NAVIGATION: Final = re.compile(r"(?:^ +- Ddp\w+: runbooks/Ddp\w+\.md\n)+", re.MULTILINE)


def files() -> Mapping[Path, str]:
    """Return path → text of each file."""
    topics = {heading: list(_alerts(file)) for file, heading in TOPICS.items()}
    names = [name for alerts in topics.values() for name, _ in alerts]
    schema, site = CHART / "values.schema.json", ROOT / "mkdocs.yml"
    pages = "".join(f"          - {name}: runbooks/{name}.md\n" for name in sorted(names))
    return {
        INDEX: with_tables(INDEX.read_text(encoding="utf-8"), _tables(topics)),
        schema: _ENUM.sub(lambda found: _enum(found[1], names), schema.read_text(encoding="utf-8")),
        site: _NAVIGATION.sub(pages, site.read_text(encoding="utf-8")),
    }


def _alerts(file: str) -> Iterator[tuple[str, str]]:
    """Yield name and summary of each alert in a file of rules."""
    document = yaml.safe_load((CHART / "files" / "rules" / f"{file}.yaml").read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                yield rule["alert"], rule["annotations"]["summary"]


def _tables(topics: Mapping[str, list[tuple[str, str]]]) -> Iterator[str]:
    for heading, alerts in topics.items():
        yield from ("", f"## {heading}", "", "| Alert | Fires when |", "|---|---|")
        yield from (f"| [{name}]({name}.md) | {summary} |" for name, summary in alerts)


def _enum(indent: str, names: list[str]) -> str:
    """Return the lines of the schema that allow these names."""
    listed = ",\n".join(f"{indent}    {json.dumps(name)}" for name in names)
    return f'{indent}"type": "object",\n{indent}"propertyNames": {{\n{indent}  "enum": [\n{listed}\n{indent}  ]'
