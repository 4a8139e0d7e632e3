"""Tables of the names that this project uses: one file for each version of torch, in ``tests/torch_api``."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools.torch_api.layer import ANY, Layer
from tools.torch_api.uses import ROOT, Use

FOLDER: Final = ROOT / "tests" / "torch_api"

Table = dict[str, list[str] | None]
"""Name → parameters, None where they are unknown. A name that the version lacks is left out."""


def read_layer(wheel: Path) -> Layer:
    """Return the Python files and stubs of a wheel."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist(), reverse=True):  # a stub before its source: it has the signatures
            if name.startswith("torch/") and name.endswith((".py", ".pyi")):
                module = name.rpartition(".")[0].replace("/", ".").removesuffix(".__init__")
                texts[module].append(archive.read(name).decode())
    return Layer(texts)


def table_of(layer: Layer, uses: Iterable[Use]) -> Table:
    """Return the table of the names in use."""
    return {path: layer.parameters(path) for path in sorted({use.path for use in uses}) if layer.find(path)}


def write_table(version: str, table: Table) -> Path:
    """Write a table, one name a line, and return its file."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{version}.json"
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
    file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return file


def read_tables() -> dict[str, Table]:
    """Return all tables by version."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))}


def is_private(path: str) -> bool:
    """Return whether a name is private in torch: a part of it begins with an underscore.

    >>> [is_private(path) for path in ("torch._C.Node", "torch.nn.Module.__init__", "torch.ones")]
    [True, False, False]
    """
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


def find_errors(table: Table, uses: Iterable[Use]) -> list[str]:
    """Return a sentence for each name and each keyword that a version lacks."""
    faults = []
    for use in uses:
        if use.path not in table:
            faults.append(f"{use.place}: {use.path} does not exist")
        elif (parameters := table[use.path]) is not None and ANY not in parameters:
            faults += [f"{use.place}: {use.path} has no {key!r}" for key in use.keywords if key not in parameters]
    return faults
