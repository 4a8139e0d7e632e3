"""The Python files and stubs of one torch wheel, read without an import of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None
"""Definition of a name; None for a value, whose own attributes are not looked up."""

ANY: Final = "**"
"""Among the names of parameters: any keyword is accepted."""
_GENERATED: Final = ("torch._C._VariableFunctions", "torch._C")
"""Modules whose names torch copies into ``torch`` when it is imported."""
_MOST_STEPS: Final = 30


@dataclass(slots=True)
class Definition:
    """Place and syntax trees of the definition of a name."""

    module: str
    nodes: list[Node]
    """Several for overloads."""


@dataclass(slots=True)
class Layer:
    """Modules of one version of torch."""

    texts: Mapping[str, list[str]]
    """Module → texts of its stub and its source."""
    _trees: dict[str, list[ast.Module]] = field(default_factory=dict)

    def find(self, path: str, steps: int = 0) -> Definition | None:
        """Return the definition of a dotted path, or None if this version has no such name."""
        parts = path.split(".")
        count = max((n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in self.texts), default=0)
        if not count or steps > _MOST_STEPS:
            return None
        module = ".".join(parts[:count])
        found: Definition | None = Definition(module, [None])
        for position, name in enumerate(parts[count:]):
            found = self._in_module(module, name, steps) if position == 0 else self._in_class(found, name, steps)
            if found is None or found.nodes == [None]:
                return found
        return found

    def parameters(self, path: str) -> list[str] | None:
        """Return the names of parameters of a function or class, :data:`ANY` among them; None if they are unknown."""
        found = self.find(path)
        names: set[str] = set()
        for node in found.nodes if found else []:
            if isinstance(node, ast.ClassDef) and found is not None:
                made = self._in_class(found, "__init__", 0) or self._in_class(found, "__new__", 0)
                functions = made.nodes if made else []
                if not functions and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                    names |= {
                        name
                        for statement in node.body
                        if isinstance(statement, ast.AnnAssign)
                        for name in _assigned(statement)
                    }
            else:
                functions = [node]
            for function in functions:
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    return None
                given = function.args
                names |= {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
                names |= {ANY} if given.kwarg else set()
        return sorted(names - {"self", "cls"}) or None

    def _in_module(self, module: str, name: str, steps: int) -> Definition | None:
        stars: list[str] = []
        for tree in self._trees_of(module):
            statements = list(_walk_body(tree.body))
            nodes = _defined(statements, name)
            if definitions := [node for node in nodes if node is not None]:
                return Definition(module, [*definitions])
            for node in statements:
                if isinstance(node, ast.ImportFrom):
                    source = _absolute(module, node, is_package=self._is_package(module))
                    stars += [source for alias in node.names if alias.name == "*"]
                    names = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
                    origin = f"{source}.{names[0]}" if names else ""
                    if origin not in ("", f"{module}.{name}") and (found := self.find(origin, steps + 1)):
                        return found
            if nodes:
                return Definition(module, [None])
        sources = [*stars, *(_GENERATED if module == "torch" else ())]
        found_in = (self.find(f"{source}.{name}", steps + 1) for source in sources if source != module)
        return next((found for found in found_in if found), None)

    def _in_class(self, owner: Definition | None, name: str, steps: int) -> Definition | None:
        for node in owner.nodes if owner else []:
            if not isinstance(node, ast.ClassDef) or owner is None:
                return Definition("", [None])  # an attribute of a function or a value
            nodes = _defined(list(_walk_body(node.body)), name)
            if nodes:
                return Definition(owner.module, nodes)
            for base in [*node.bases, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]:
                found = self._base(owner.module, base, steps)
                if found and (inherited := self._in_class(found, name, steps + 1)) and steps < _MOST_STEPS:
                    return inherited
        return None

    def _base(self, module: str, base: ast.expr, steps: int) -> Definition | None:
        text = ast.unparse(base).partition("[")[0]
        first, _, rest = text.partition(".")
        if text.startswith("torch."):
            return self.find(text, steps + 1)
        return self.find(f"{module}.{first}{'.' if rest else ''}{rest}", steps + 1)

    def _is_package(self, module: str) -> bool:
        return any(name.startswith(f"{module}.") for name in self.texts)

    def _trees_of(self, module: str) -> list[ast.Module]:
        if module not in self._trees:
            self._trees[module] = [ast.parse(text) for text in self.texts[module]]
        return self._trees[module]


def _walk_body(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module or class is made, those of branches too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            for part in ("body", "orelse", "finalbody"):
                yield from _walk_body(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _walk_body(handler.body)


def _defined(statements: list[ast.stmt], name: str) -> list[Node]:
    """Definitions of a name: all overloads of a function, None for a value or a module."""
    nodes: list[Node] = []
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes += [node] if node.name == name else []
        elif name in (_import_names(node) if isinstance(node, ast.Import) else _assigned(node)):
            nodes.append(None)
    return nodes


def _import_names(node: ast.Import) -> set[str]:
    return {alias.asname or alias.name for alias in node.names}


def _assigned(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    named = [part for target in targets if target is not None for part in ast.walk(target)]
    return {part.id for part in named if isinstance(part, ast.Name)}


def _absolute(module: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parent = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parent, *([node.module] if node.module else [])])
