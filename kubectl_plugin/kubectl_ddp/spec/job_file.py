"""Strict parser of job files in YAML: a DDPJob, or the earlier form with all keys beside ``kind``.

Scalars are read as text and parsed by their field. YAML 1.1 would read ``nnodes: 1:2`` as the number 62 and ``env:
{ANSWER: no}`` as false. Unknown and repeated keys are rejected with their line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from kubectl_ddp.errors import NotFound, UsageError, suggest_file, suggest_known
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.job_kinds import HEADER, KUBECTLS, METADATA
from kubectl_ddp.spec.fields import FILE_KEYS, PROGRAM_KEYS
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.spec.serialization import HEADER as EARLIER_HEADER
from kubectl_ddp.util.yaml_text import plain_value
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


def read(path: str, warn: Callable[[str], None] = lambda _: None) -> Layer:
    """Return the values of the job file at a path (``-``: standard input).

    Args:
        path: Path of the file.
        warn: Called with a sentence about what is read and should be written differently.

    Raises:
        UsageError: If the file is invalid.
        NotFound: If the file does not exist.
    """
    return parse(_open(path), warn)


def parse(file: JobFile, warn: Callable[[str], None] = lambda _: None) -> Layer:
    """Return the values of a job file by dotted key. Raises UsageError."""
    root = _root(file)
    entries = {key: (node, value) for key, node, value in _entries(file, root)}
    layer: dict[str, Given] = {}
    keys = _parse_legacy_keys if _is_legacy_header(file, entries) else _keys
    for key, node, value in keys(file, entries, warn):
        if key not in FILE_KEYS:
            raise UsageError(f"{file.line(node)}: a job has no key '{key}'.", hint=suggest_known(key, FILE_KEYS))
        layer.update(_given(file, key, value))
    for key in ("code",) if "codeClaim" in layer else ("script", "code"):  # relative to the file
        if key in layer and isinstance(path := layer[key].raw, str):
            layer[key] = replace(layer[key], raw=str(file.directory / path))
    if sum(key in layer for key in PROGRAM_KEYS) > 1:
        raise UsageError(f"{file.name}: script, module and command exclude each other.", hint="Keep the one to run.")
    return layer


def _open(path: str) -> JobFile:
    if path == STANDARD_INPUT:
        data, name, directory = sys.stdin.buffer.read(LARGEST_BYTES + 1), "standard input", Path()
    else:
        name, directory = path, Path(path).parent
        try:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
        except FileNotFoundError:
            raise NotFound(
                f"There is no job file '{path}'.",
                hint=suggest_file(path) or "Name one that exists, or '-' for standard input.",
            ) from None
        except OSError as error:
            raise UsageError(
                f"The job file '{path}' cannot be read: {error.strerror}.", hint="Name a file you may read."
            ) from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{name} is larger than {LARGEST_BYTES // 2**20} MiB; no job file is.")
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
            f"{file.name} holds {holds} where one job is expected.",
            hint=f"Begin with 'apiVersion: {job_kinds.API_VERSION}'.",
        )
    return documents[0]


Entry = tuple[str, yaml.Node, yaml.Node]
"""Key, node of the key, and node of the value."""
Entries = Mapping[str, tuple[yaml.Node, yaml.Node]]
"""Key → node of the key, and node of the value."""


def _is_legacy_header(file: JobFile, entries: Entries) -> bool:
    """Return whether the header is that of the earlier form. Raises UsageError for another one."""
    header = EARLIER_HEADER if _node_text(entries, "kind") == EARLIER_HEADER["kind"] else HEADER
    if missing := [f"'{key}: {wanted}'" for key, wanted in header.items() if key not in entries]:
        raise UsageError(f"{file.name} lacks {' and '.join(missing)}.", hint="Begin the file with it.")
    for key, wanted in header.items():
        if _node_text(entries, key) != wanted:
            raise UsageError(
                f"{file.line(entries[key][1])}: {key} is '{_node_text(entries, key)}', and a job file says '{wanted}'.",
                hint="Rendered objects go to 'kubectl apply', job files to submit and render.",
            )
    return header is EARLIER_HEADER


def _node_text(entries: Entries, key: str) -> str:
    node = entries[key][1] if key in entries else None
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "..."


def _parse_legacy_keys(file: JobFile, entries: Entries, warn: Callable[[str], None]) -> Iterator[Entry]:
    warn(
        f"{file.name} has the form before 'kind: {job_kinds.KIND}', which 'kubectl apply' does not accept. "
        f"Begin it with 'apiVersion: {job_kinds.API_VERSION}', and move name to metadata and all other keys to spec."
    )
    yield from ((key, *nodes) for key, nodes in entries.items() if key not in EARLIER_HEADER)


def _keys(file: JobFile, entries: Entries, warn: Callable[[str], None]) -> Iterator[Entry]:
    """Yield the keys below ``metadata`` and ``spec``."""
    for part, (node, value) in entries.items():
        if part in HEADER:
            continue
        if part not in {"metadata", "spec"}:
            hint = "Write it below spec." if part in FILE_KEYS else "A job file has metadata and spec."
            raise UsageError(f"{file.line(node)}: a {job_kinds.KIND} has no key '{part}'.", hint=hint)
        if not isinstance(value, yaml.MappingNode):
            raise UsageError(f"{file.line(value)}: {part} is a map.", hint="Write one 'KEY: value' per line below it.")
        for key, key_node, key_value in _entries(file, value):
            if part == "metadata" and key in KUBECTLS:
                warn(f"{file.line(key_node)}: metadata.{key} is for 'kubectl apply'. spec.{key} are those of the pods.")
                continue
            _check_place(file, part, key, key_node)
            yield key, key_node, key_value


def _check_place(file: JobFile, part: str, key: str, node: yaml.Node) -> None:
    """Raise UsageError for a key of a job that is not in its part of the file, or only in an object of a cluster."""
    if part == "spec" and key in job_kinds.CONTROLS:
        raise UsageError(
            f"{file.line(node)}: {key} is of an object in a cluster.",
            hint="Leave it out, and use 'kubectl ddp suspend' or 'scale'; or create the job with 'kubectl apply'.",
        )
    known = METADATA if part == "metadata" else tuple(key for key in FILE_KEYS if key not in METADATA)
    if key not in known:
        other = "spec" if part == "metadata" else "metadata"
        if key in FILE_KEYS:
            raise UsageError(f"{file.line(node)}: {part} has no key '{key}'.", hint=f"Write it below {other}.")
        what = "a job" if part == "spec" else part
        raise UsageError(f"{file.line(node)}: {what} has no key '{key}'.", hint=suggest_known(key, known))


def _entries(file: JobFile, node: yaml.MappingNode) -> Iterator[Entry]:
    """Yield key, node of the key, and node of the value; reject keys that are not text or repeated."""
    seen: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{file.line(key)}: a key must be a string.")
        if key.value in seen:
            first = seen[key.value].start_mark.line + 1
            raise UsageError(
                f"{file.line(key)}: '{key.value}' is on line {first} already.", hint="Keep one of the two."
            )
        seen[key.value] = key
        yield key.value, key, value


def _given(file: JobFile, key: str, node: yaml.Node) -> dict[str, Given]:
    if FILE_KEYS[key].is_map:
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{file.line(node)}: {key} is a map.", hint="Write one 'NAME: value' per line below it.")
        return {
            f"{key}.{name}": Given(_scalar(file, f"{key}.{name}", value), Origin(OriginKind.FILE, file.line(value)))
            for name, _, value in _entries(file, node)
        }
    raw: Raw
    if FILE_KEYS[key].is_object and isinstance(node, yaml.MappingNode):
        raw = _nested(file, node)
    elif isinstance(node, yaml.SequenceNode):
        raw = [_scalar(file, key, item) for item in node.value]
    else:
        raw = _scalar(file, key, node)
    return {key: Given(raw, Origin(OriginKind.FILE, file.line(node)))}


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
