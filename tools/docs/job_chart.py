"""Values and schema of the chart ddp-job, from the table of job keys: ``charts/ddp-job/values.{yaml,schema.json}``.

The values are the fields of the specification of a DDPJob, and the name of the job. A value is null unless the user
sets it, and null stays out of the DDPJob.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.kube.job_kinds import CONTROLS
from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.job_key import Group
from tools.docs.ddpjob_crd import HEADER, Schema, root_schema

CHART: Final = Path(__file__).parents[2] / "charts" / "ddp-job"
README_TEXT: Final = """\
# The values are the fields of the specification of a DDPJob, as below `spec` of a job file (docs/job-file.md).
# What is not set, or set to null, stays out of the DDPJob, and a preset or a default of the job decides.
"""
VALUE_DESCRIPTIONS: Final = {
    "name": "Name of the job. Default: the name of the release.",
    "script": "Python file to run, a path in codeClaim. Notation: FILE.",
}
"""Value → description that differs from that of the job key."""
LEFT_OUT: Final = frozenset({"code"})
"""Keys that need a file of the submitter's machine."""
_WIDTH: Final = 116
_GROUP_NAME: Final = re.compile(r"\?P<\w+>")


def files() -> Mapping[Path, str]:
    """Return path → text of each file."""
    schema = json.dumps(values_schema(), indent=2, ensure_ascii=False)
    return {CHART / "values.yaml": "".join(_values()), CHART / "values.schema.json": f"{schema}\n"}


def values_schema() -> Schema:
    """Return the JSON schema of the values, as strict as the API server is with a DDPJob."""
    given: Schema = {"type": "string"}
    script = {"if": {"required": ["script"], "properties": {"script": given}}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart ddp-job",
        "type": "object",
        "additionalProperties": False,
        "properties": {**{key: _or_null(_plain(schema)) for key, schema in _fields().items()}, "global": {}},
        # A release sends no files, so its script is a path in codeClaim.
        **script,
        "then": {"required": ["codeClaim"], "properties": {"codeClaim": given}},
    }


def _fields() -> Mapping[str, Schema]:
    """Return the schema of each value in the DDPJob, in the order of the files."""
    root = root_schema()["properties"]
    fields = {"name": root["metadata"]["properties"]["name"], **root["spec"]["properties"]}
    described = {key: {**fields[key], "description": description} for key, description in VALUE_DESCRIPTIONS.items()}
    return {key: described.get(key, schema) for key, schema in fields.items() if key not in LEFT_OUT}


def _values() -> Iterator[str]:
    fields = _fields()
    keys = {group: [key for key, field in FILE_KEYS.items() if field.group is group] for group in Group}
    keys[Group.JOB] += CONTROLS
    yield f"{HEADER}\n{README_TEXT}"
    for group, members in keys.items():
        yield f"\n# {group}\n"
        for key in (key for key in members if key in fields):
            words = textwrap.wrap(f"-- {fields[key]['description']}", _WIDTH, break_on_hyphens=False)
            yield "".join(f"# {line}\n" for line in words) + f"{key}: null\n"


def _plain(schema: Schema) -> Schema:
    """Return a structural schema as a JSON schema of draft 7."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-") and key not in {"anyOf", "format"}}
    if "anyOf" in schema:
        made["type"] = ["integer", "string"]
    if "pattern" in schema:
        made["pattern"] = _GROUP_NAME.sub("", schema["pattern"])
    if "items" in schema:
        made["items"] = _plain(schema["items"])
    if "properties" in schema:
        made |= {"properties": {key: _plain(field) for key, field in schema["properties"].items()}}
        made["additionalProperties"] = False
    elif "additionalProperties" in schema:
        made["additionalProperties"] = _or_null(_plain(schema["additionalProperties"]))
    return made


def _or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be taken back with null."""
    kinds: Any = schema["type"]
    made = {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}
    return made | ({"enum": [*schema["enum"], None]} if "enum" in schema else {})
