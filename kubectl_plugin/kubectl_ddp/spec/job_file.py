"""Strict parser of job files in YAML.

Scalars are read as text and parsed by their field. YAML 1.1 would read ``nnodes: 1:2`` as the number 62 and ``env:
{ANSWER: no}`` as false. Unknown and repeated keys are rejected with their line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.spec.fields import FILE_KEYS, PROGRAM_KEYS
from kubectl_ddp.spec.serialization import API_VERSION, KIND
from kubectl_ddp.spec.value_source import Given, Kind, Layer, Origin
from kubectl_ddp.util.nearest import suggest_file, suggest_known
from kubectl_ddp.util.yaml_file import plain_value
from kubectl_ddp.values.parsers import Raw

LARGEST_BYTES: Final = 2**20
STANDARD_INPUT: Final = "-"


@dataclass(frozen=True, slots=True)
class JobFile:
    """Text of a job file, and its name for messages."""

    name: str
    text: str
    directory: Path
    """Directory that relative paths in it refer to."""

    def line(self, node: yaml.Node) -> str:
        """Return the location of a node, such as ``job.yaml line 4``."""
        return f"{self.name} line {node.start_mark.line + 1}"


def read(file: str | JobFile) -> Layer:
    """Return the values of a job file, or of the file at a path (``-``: standard input).

    Raises:
        UsageError: If the file is invalid.
        NotFound: If the file does not exist.
    """
    return parse(file if isinstance(file, JobFile) else open_file(file))


def parse(file: JobFile) -> Layer:
    """Return the values of a job file by dotted key. Raises UsageError."""
    root = _root(file)
    _check_header(file, root)
    layer: dict[str, Given] = {}
    for key, node, value in _entries(file, root):
        if key in {"apiVersion", "kind"}:
            continue
        if key not in FILE_KEYS:
            raise UsageError(f"{file.line(node)}: a job has no key '{key}'.", hint=suggest_known(key, FILE_KEYS))
        layer.update(_given(file, key, value))
    for key in ("code",) if "codeClaim" in layer else ("script", "code"):  # relative to the file
        if key in layer and isinstance(path := layer[key].raw, str):
            layer[key] = replace(layer[key], raw=str(file.directory / path))
    if sum(key in layer for key in PROGRAM_KEYS) > 1:
        raise UsageError(f"{file.name}: script, module and command exclude each other.", hint="Keep the one to run.")
    return layer


def open_file(path: str, what: str = "job file", largest_bytes: int = LARGEST_BYTES) -> JobFile:
    """Read the file at a path (``-``: standard input).

    Args:
        path: Path of the file.
        what: Kind of file, for error messages.
        largest_bytes: Maximum size.

    Raises:
        UsageError: If it cannot be read, is too large, or is not UTF-8.
        NotFound: If it does not exist.
    """
    if path == STANDARD_INPUT:
        data, name, directory = sys.stdin.buffer.read(largest_bytes + 1), "standard input", Path()
    else:
        name, directory = path, Path(path).parent
        try:
            with Path(path).open("rb") as file:
                data = file.read(largest_bytes + 1)
        except FileNotFoundError:
            raise NotFound(
                f"There is no {what} '{path}'.",
                hint=suggest_file(path) or "Name one that exists, or '-' for standard input.",
            ) from None
        except OSError as error:
            raise UsageError(
                f"The {what} '{path}' cannot be read: {error.strerror}.", hint="Name a file you may read."
            ) from None
    if len(data) > largest_bytes:
        raise UsageError(f"{name} is larger than {largest_bytes // 2**20} MiB; no {what} is.")
    try:
        return JobFile(name, data.decode("utf-8-sig"), directory)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: byte {error.start} is invalid.", hint="Save it as UTF-8."
        ) from None


def _root(file: JobFile) -> yaml.MappingNode:
    try:
        documents = list(yaml.compose_all(file.text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file.name}{where} is not valid YAML: {error.problem}.", hint="Correct the line.") from None
    except RecursionError:
        raise UsageError(
            f"{file.name} is nested too deeply to be a job file.", hint="A job has keys with values, lists and maps."
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(
            f"{file.name} is not valid YAML: {str(error).splitlines()[0]}.", hint="Save it as text."
        ) from None
    if len(documents) != 1 or not isinstance(documents[0], yaml.MappingNode):
        holds = {0: "nothing", 1: "no map of keys"}.get(len(documents), f"{len(documents)} documents")
        raise UsageError(
            f"{file.name} holds {holds} where one job is expected.", hint=f"Begin with 'apiVersion: {API_VERSION}'."
        )
    return documents[0]


def _check_header(file: JobFile, root: yaml.MappingNode) -> None:
    said = {key: value for key, _, value in _entries(file, root)}
    header = {"apiVersion": API_VERSION, "kind": KIND}
    if missing := [f"'{key}: {wanted}'" for key, wanted in header.items() if key not in said]:
        raise UsageError(f"{file.name} lacks {' and '.join(missing)}.", hint="Begin the file with it.")
    for key, wanted in header.items():
        node = said[key]
        if not isinstance(node, yaml.ScalarNode) or node.value != wanted:
            value = node.value if isinstance(node, yaml.ScalarNode) else "..."
            raise UsageError(
                f"{file.line(node)}: {key} is '{value}', and a job file says '{wanted}'.",
                hint="Rendered objects go to 'kubectl apply', job files to submit and render.",
            )


def _entries(file: JobFile, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Yield key, node of the key, and node of the value; reject keys that are not text or repeated."""
    seen: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{file.line(key)}: a key must be a string.")
        if key.value in seen:
            first = seen[key.value].start_mark.line + 1
            raise UsageError(
                f"{file.line(key)}: '{key.value}' stands on line {first} already.", hint="Keep one of the two."
            )
        seen[key.value] = key
        yield key.value, key, value


def _given(file: JobFile, key: str, node: yaml.Node) -> dict[str, Given]:
    if FILE_KEYS[key].is_map:
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{file.line(node)}: {key} is a map.", hint="Write one 'NAME: value' per line below it.")
        return {
            f"{key}.{name}": Given(_scalar(file, f"{key}.{name}", value), Origin(Kind.FILE, file.line(value)))
            for name, _, value in _entries(file, node)
        }
    raw: Raw
    if FILE_KEYS[key].is_object and isinstance(node, yaml.MappingNode):
        raw = _nested(file, node)
    elif isinstance(node, yaml.SequenceNode):
        raw = [_scalar(file, key, item) for item in node.value]
    else:
        raw = _scalar(file, key, node)
    return {key: Given(raw, Origin(Kind.FILE, file.line(node)))}


def _nested(file: JobFile, node: yaml.Node) -> Raw:
    try:
        value: Raw = plain_value(node)
    except (yaml.MarkedYAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or node.start_mark
        problem = getattr(error, "problem", "it is nested too deeply")
        raise UsageError(
            f"{file.name} line {mark.line + 1} is not valid: {problem}.", hint="Write it as in a pod."
        ) from None
    return value


def _scalar(file: JobFile, key: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(f"{file.line(node)}: {key} holds a list or a map where one value is expected.")
    if node.tag == "tag:yaml.org,2002:null":
        raise UsageError(f"{file.line(node)}: {key} has no value.", hint="Give it one, or leave the key out.")
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise UsageError(
            f"{file.line(node)}: {key} has the tag '{node.tag}', which means nothing here.", hint="Leave it out."
        )
    return str(node.value)
