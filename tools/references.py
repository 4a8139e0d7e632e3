"""Check of names for ``make lint``: no class name twice in a package, and no docstring reference to what is gone.

A reference is a role of Sphinx, such as ``func``, with a name of this project: dotted from its package, after a dot as
the end of a dotted name, or as the module with the docstring has it. Names of other packages are not checked.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "ddp_trainer": ROOT / "trainer",
    "ddp_collectives": ROOT,
    "ddp_preflight": ROOT,
    "ddp_report": ROOT,
    "ddp_workloads": ROOT,
    "kubectl_ddp": ROOT / "kubectl_plugin",
    "ddp_controller": ROOT / "kubectl_plugin",
    "bench": ROOT,
    "tools": ROOT,
}
"""Name of a package → folder that it is in."""
REFERENCE: Final = re.compile(r":(?:func|class|meth|attr|data|mod|exc):`~?([\w.]+)`")

Members = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class Module:
    """Names of one module."""

    text: str
    names: set[str] = field(default_factory=set)
    """Names that it defines or imports at its top level."""
    classes: Members = field(default_factory=dict)
    """Class → its attributes and methods, and the names of its bases, each with a ``<`` before it."""

    @classmethod
    def of(cls, text: str) -> Module:
        """Return the names of a module's text."""
        module = cls(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                module.classes[node.name] = set(_members(node))
        for node in ast.parse(text).body:
            module.names.update(_bound(node))
        return module


def main() -> int:
    """Print each finding. Returns 1 if there is one."""
    modules = read_modules()
    findings = [*repeated_classes(modules), *dead_references(modules)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def read_modules() -> dict[str, Module]:
    """Return all modules of the project by dotted name; a package is a module, too."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = Module.of(path.read_text())
    return found


def repeated_classes(modules: dict[str, Module]) -> Iterator[str]:
    """Yield a finding for each public class name that a package has twice."""
    for package in PACKAGES:
        places: dict[str, list[str]] = {}
        for name, module in modules.items():
            for cls in module.classes if name.split(".")[0] == package else ():
                places.setdefault(cls, []).append(name)
        for cls, found in sorted(places.items()):
            if len(found) > 1 and not cls.startswith("_"):
                yield f"class {cls} is in {', '.join(found)}"


def dead_references(modules: dict[str, Module]) -> Iterator[str]:
    """Yield a finding for each reference to a name that is not there."""
    for name, module in modules.items():
        for target in sorted(set(REFERENCE.findall(module.text))):
            if not is_defined(target, name, modules):
                yield f"{name}: `{target}` names nothing"


def is_defined(target: str, place: str, modules: dict[str, Module]) -> bool:
    """Return True if ``target`` is defined, as seen from the module ``place``, or is of another package."""
    parts = target.split(".")
    if parts[0] in PACKAGES:
        return _is_defined(parts, modules)
    if not parts[0]:
        own = [name.split(".") for name in modules if name.split(".")[0] == place.split(".", maxsplit=1)[0]]
        return any(_is_defined([*above, *parts[1:]], modules) for name in own for above in (name, name[:-1]))
    module, (first, *rest) = modules[place], parts
    if first in module.names:
        return _has(parts, place, modules)
    is_member = any(first in members or _has_member(cls, first, modules) for cls, members in module.classes.items())
    is_near = any(_is_defined([*near, *parts], modules) for near in (place.split("."), place.split(".")[:-1]))
    is_foreign = bool(rest) and first.islower()
    return (is_member and not rest) or is_near or is_foreign or hasattr(builtins, first)


def _is_defined(parts: list[str], modules: dict[str, Module]) -> bool:
    """Return True if a dotted name from its package is a module, or is defined in one."""
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in modules:
            return length == len(parts) or _has(parts[length:], name, modules)
    return False


def _has(parts: list[str], place: str, modules: dict[str, Module]) -> bool:
    """Return True if a module has a name, or a class of it this member."""
    module, (first, *rest) = modules[place], parts
    if first not in module.names and first not in module.classes:
        return False
    is_class = any(first in other.classes for other in modules.values())
    return not rest or not is_class or _has_member(first, rest[0], modules)


def _has_member(cls: str, name: str, modules: dict[str, Module]) -> bool:
    """Return True if a class of this name, or one of its bases in the project, has the member."""
    for module in modules.values():
        members = module.classes.get(cls, set())
        bases = [member[1:] for member in members if member.startswith("<")]
        if name in members | {"__init__"} or any(base != cls and _has_member(base, name, modules) for base in bases):
            return True
    return False


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement of a module binds."""
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.split(".")[0]
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def _members(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        yield f"<{ast.unparse(base).partition('[')[0].rpartition('.')[2]}"
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name


if __name__ == "__main__":
    sys.exit(main())
