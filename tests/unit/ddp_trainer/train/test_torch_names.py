"""Names that torch promises to nobody, and that the trainer asks for: another version of torch is named with them.

Most have a public way beside them, which is slower or less; which of them are gone, only this says in a sentence.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn

import ddp_trainer

ROOT = Path(ddp_trainer.__file__).parent
COMPILER = "torch._dynamo"
"""Takes seconds to import; what compiles asks it for real in the tests of that."""


def imported(tree: ast.Module) -> dict[str, str]:
    """What each name of a file stands for, of torch."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or "torch": each.name if each.asname else "torch" for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return {name: path for name, path in found.items() if path.split(".")[0] == "torch"}


def asked_for(file: Path) -> Iterator[str]:
    """Dotted names with a private part."""
    tree = ast.parse(file.read_text())
    known = imported(tree)
    for node in ast.walk(tree):
        parts: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id in known:
            path = ".".join([known[at.id], *parts])
            if "._" in path and not path.rpartition(".")[2].startswith("__"):
                yield path


def has(path: str) -> bool:
    """Whether this version of torch has something of the name."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[count:], module)
        except AttributeError:
            return False
        return True
    return False


def test_this_torch_has_every_private_name_that_the_trainer_asks_for() -> None:
    names = {path: file for file in sorted(ROOT.rglob("*.py")) for path in asked_for(file)}
    assert "torch.distributed.tensor._random._rng_tracker" in names, "the search finds what is asked for"
    assert not has("torch.utils._pytree.no_such_name"), "and tells what is not there"
    lacking = [
        f"{file.relative_to(ROOT)} asks for {path}, which torch {torch.__version__} has not."
        for path, file in names.items()
        if not path.startswith(COMPILER) and not has(path)
    ]
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (nn.Parameter(torch.ones(1)), ("_base", "_use_count", "_backward_hooks", "_post_accumulate_grad_hooks")),
        (torch.ops.aten.add.Tensor, ("_schema",)),
        (torch.ops.aten.add_.Tensor._schema.arguments[0].alias_info, ("is_write",)),
        (nn.Linear(1, 1), ("_compiled_call_impl",)),
        (nn.parallel.DistributedDataParallel, ("_check_reducer_finalized",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_objects_of_this_torch_have_what_the_trainer_asks_them(thing: object, names: tuple[str, ...]) -> None:
    assert all(hasattr(thing, name) for name in names)
