"""The JSON schema of job files accepts what the parser accepts, and documents are written from the same table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from kubectl_ddp.kube.job_kinds import HEADER, METADATA
from kubectl_ddp.spec.fields import DEFAULTS, FILE_KEYS, job_schema
from kubectl_ddp.spec.job_file import JobFile, parse
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.serialization import to_ddpjob
from tests.support.jobs import jobs

ROOT: Final = Path(__file__).parents[4]
MODELINE: Final = "# yaml-language-server: $schema=../../docs/job.schema.json\n"
TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a value matches a schema. Only keywords that ours uses are known; another one is a KeyError."""
    return all(KEYWORDS[keyword](value, wanted, schema) for keyword, wanted in schema.items())


def rest_is_valid(value: Any, wanted: Any, schema: Mapping[str, Any]) -> bool:
    more = [value[key] for key in value if key not in schema.get("properties", {})] if isinstance(value, dict) else []
    return not more if wanted is False else all(is_valid(item, wanted) for item in more)


KEYWORDS: Final[Mapping[str, Callable[[Any, Any, Mapping[str, Any]], bool]]] = {
    **dict.fromkeys(("$schema", "title", "description", "default"), lambda *_: True),
    "type": lambda value, wanted, _: any(
        TYPES[kind](value) for kind in ([wanted] if isinstance(wanted, str) else wanted)
    ),
    "const": lambda value, wanted, _: value == wanted,
    "enum": lambda value, wanted, _: value in wanted,
    "pattern": lambda value, wanted, _: (
        not isinstance(value, str) or re.search(wanted.replace("(?<", "(?P<"), value) is not None
    ),
    "minimum": lambda value, wanted, _: not TYPES["number"](value) or value >= wanted,
    "maximum": lambda value, wanted, _: not TYPES["number"](value) or value <= wanted,
    "minItems": lambda value, wanted, _: not isinstance(value, list) or len(value) >= wanted,
    "required": lambda value, wanted, _: all(key in value for key in wanted),
    "anyOf": lambda value, wanted, _: any(is_valid(value, item) for item in wanted),
    "not": lambda value, wanted, _: not is_valid(value, wanted),
    "items": lambda value, wanted, _: not isinstance(value, list) or all(is_valid(item, wanted) for item in value),
    "propertyNames": lambda value, wanted, _: all(is_valid(item, wanted) for item in value),
    "properties": lambda value, wanted, _: all(is_valid(value[key], wanted[key]) for key in wanted if key in value),
    "additionalProperties": rest_is_valid,
}
"""Keyword of JSON schema → check of (value, the keyword's value, schema)."""


def as_file(values: Mapping[str, Any]) -> dict[str, Any]:
    """A job file with these keys."""
    metadata = {key: value for key, value in values.items() if key in METADATA}
    return {**HEADER, "metadata": metadata, "spec": {key: values[key] for key in values if key not in METADATA}}


def wrong(document: Mapping[str, Any]) -> list[str]:
    """Keys of a job file that the schema refuses; ``job`` for a violation beyond single keys."""
    schema = job_schema()
    parts = [(document.get(part, {}), schema["properties"][part]["properties"]) for part in ("metadata", "spec")]
    found = [key for keys, known in parts for key in keys if not is_valid(keys[key], known.get(key, {"enum": []}))]
    return found if found or is_valid(document, schema) else ["job"]


@given(jobs())
@settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
def test_the_schema_accepts_any_valid_job(spec: JobSpec) -> None:
    assert wrong(json.loads(json.dumps(to_ddpjob(spec)))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "manifests/examples").glob("*.ddp.yaml")), ids=lambda path: path.name)
def test_the_schema_accepts_each_example_which_names_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert wrong(yaml.safe_load(text)) == []
    assert text.startswith(MODELINE)


@pytest.mark.parametrize("key", FILE_KEYS)
def test_schema_and_parser_accept_the_example_of_each_key(key: str) -> None:
    field = FILE_KEYS[key]
    line = f"{key}: {field.example}"
    assert wrong(as_file(yaml.safe_load(line))) == []
    layer = parse(JobFile("x", json.dumps(as_file(yaml.safe_load(line))), Path()))
    for name, value in layer.items():
        entry = name.partition(".")[2]
        assert field.parse({entry: value.raw} if field.is_map else value.raw) not in (None, ())


@pytest.mark.parametrize("key", DEFAULTS)
def test_the_schema_accepts_each_default(key: str) -> None:
    assert wrong(as_file({key: DEFAULTS[key]})) == []


@pytest.mark.parametrize("more", [
    {"nodes": 2}, {"gpus": 65}, {"nproc": "many"}, {"memory": "16"}, {"memory": 16}, {"engine": "slurm"},
    {"name": "Digits"}, {"env": ["A=1"]}, {"secretEnv": {"A": "no-key"}}, {"metricsFrom": []},
    {"module": "a", "command": "b"},
], ids=str)  # fmt: skip
def test_the_schema_refuses(more: dict[str, Any]) -> None:
    assert wrong(as_file(more)) != []


def test_the_header_is_required() -> None:
    assert wrong({"metadata": {"name": "a"}}) != []
