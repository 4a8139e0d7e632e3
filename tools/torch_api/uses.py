"""Names of torch in our sources, and the keywords of calls to them, found by reading the sources.

A name is a dotted path such as ``torch.distributed.all_reduce``. Text in ``getattr(torch, "name", None)`` is not
collected, because such code works without the name. Methods of instances are not collected either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (
    ROOT / "trainer",
    ROOT / "ddp_collectives",
    ROOT / "ddp_preflight",
    ROOT / "ddp_workloads",
    ROOT / "bench",
)


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One name of torch at one place."""

    path: str
    keywords: tuple[str, ...]
    """Keywords of a call to it; empty for all other uses."""
    place: str
    """File and line, relative to the checkout."""


def find_uses(sources: tuple[Path, ...] = SOURCES) -> list[Use]:
    """Return all uses in the Python files of these folders, by path."""
    files = sorted(file for source in sources for file in source.rglob("*.py"))
    return sorted(use for file in files for use in _uses_in(file))


def _uses_in(file: Path) -> Iterator[Use]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = dict(_imports_in(tree))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    keywords = {
        id(node.func): tuple(keyword.arg for keyword in node.keywords if keyword.arg)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_torch(node.module):
            yield from (Use(f"{node.module}.{alias.name}", (), f"{name}:{node.lineno}") for alias in node.names)
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner and (path := _path_of(node, known)):
            yield Use(path, keywords.get(id(node), ()), f"{name}:{node.lineno}")


def _imports_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_torch(alias.name):
                    yield (alias.asname, alias.name) if alias.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_torch(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"


def _path_of(node: ast.expr, known: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([known[node.id], *parts]) if isinstance(node, ast.Name) and node.id in known else ""
