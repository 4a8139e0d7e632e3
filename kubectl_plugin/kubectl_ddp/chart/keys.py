"""Values of the chart: the keys of a job file, and additional keys that only the chart has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubectl_ddp.fabrics.registry import AUTO
from kubectl_ddp.spec.fields import FIELDS, PRESET, Field
from kubectl_ddp.spec.presets import PRESETS
from kubectl_ddp.spec.resolve import DEFAULTS
from kubectl_ddp.spec.serialization import API_VERSION, KIND
from kubectl_ddp.values import parsers as v

Schema = Mapping[str, Any]

TEXT: Final[Schema] = {"type": "string"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
LARGEST: Final = 2**53 - 1
"""Largest integer that a floating-point number of the chart stores exactly."""
WORD: Final[Schema] = {"type": ["string", "integer"], "minimum": -LARGEST, "maximum": LARGEST}
"""Schema of a text that may be written as an unquoted integer. Other unquoted values would change their form."""
WORDS: Final[Schema] = {"type": "array", "items": WORD}
AMOUNT: Final[Schema] = {"type": ["string", "number", "null"]}
"""Schema of an amount of memory, cores, nodes or time: a number, or text that the templates parse; optional."""
AMOUNTS: Final = frozenset({"nnodes", "cpu", "memory", "shm", "grace", "deadline", "ttl"})
BARE: Final = frozenset({"maxRestarts"})
"""Keys whose default is a number."""


@dataclass(frozen=True, slots=True)
class Key:
    """One value of the chart."""

    about: str
    """Description in one sentence."""
    schema: Schema
    default: Any
    notation: str = ""
    """Notation of the value; empty for plain text."""
    section: str = field(default="", compare=False)
    """Heading above this key and those that follow."""


SECTIONS: Final[Mapping[str, str]] = {
    "name": "The run",
    "script": "What it runs: one of script, module and command",
    "nnodes": "How much",
    "image": "Image and environment",
    "maxRestarts": "Endings",
    "priority": "Where it runs",
    "mounts": "Volumes",
    "queue": "Queues and gangs",
    "gpuType": "GPUs and the network between them",
    "metricsFrom": "Who reaches its pods, and what they reach",
}
"""Key → heading above it and those that follow."""

CHARTS_OWN: Final[Mapping[str, Key]] = {
    PRESET: Key(
        "Values that belong together on a kind of machine; chosen by gpus when left out.",
        TEXT,
        "",
        "|".join([*PRESETS, "one of the namespace's"]),
        "What only the chart needs",
    ),
    "scriptText": Key("The text of script: --set-file scriptText=train.py.", TEXT, ""),
    "codeArchive": Key(
        "The directory of code, as a .tar.gz in base64: --set-file codeArchive=FILE; its digest names the ConfigMap.",
        TEXT,
        "",
    ),
    "runId": Key(
        "Tells this run from others of the same values; made of the values when left out, so that the same values "
        "always render the same objects.",
        TEXT,
        "",
    ),
    "runSecret": Key(
        "Name of a Secret that you have made, whose entry run-secret is 64 random hexadecimal digits. Made by the "
        "release when left out. Name one where a tool renders the chart without asking the cluster, as Argo CD does.",
        TEXT,
        "",
    ),
    "apiServers": Key(
        "Addresses of the cluster's API servers, which 'kubectl ddp top' and 'status' read metrics through; the "
        "NetworkPolicy lets them in.",
        TEXTS,
        [],
    ),
    "podMonitor": Key(
        "Whether Prometheus is told of the run: auto does so where the cluster serves PodMonitors and the platform "
        "has none for all runs of the namespace.",
        {"enum": ["auto", "always", "never"]},
        "auto",
        "auto|always|never",
    ),
    "apiVersion": Key("Of job files, which may be given as values.", {"enum": ["", API_VERSION]}, ""),
    "kind": Key("Of job files, which may be given as values.", {"enum": ["", KIND]}, ""),
}
"""Keys that job files do not have."""


def keys() -> dict[str, Key]:
    """Return every value by name, in the order of the job file's keys."""
    return {key: _of_field(key, known) for key, known in FIELDS.items()} | dict(CHARTS_OWN)


def _of_field(key: str, known: Field) -> Key:
    about = "Name of the run; the release's when left out." if key == "name" else known.help
    return Key(about, _schema(key, known), _default(key, known), known.metavar, SECTIONS.get(key, ""))


def _schema(key: str, known: Field) -> Schema:
    match v.PROCESSES if known.parse is v.process_count else known.parse:
        case v.Choice(members=members):
            return {"enum": [*members]}
        case v.IntRange(least=least, most=most):
            return {"type": ["integer", "null"], "minimum": least, "maximum": most}
        case v.parse_command:
            return {"type": ["array", "string"], "items": WORD}
        case v.text_list:
            return WORDS
    if known.is_map or known.is_list:
        return TEXTS if known.is_list else {"type": "object", "additionalProperties": WORD}
    return AMOUNT if key in AMOUNTS else TEXT


def _default(key: str, known: Field) -> Any:
    if key in DEFAULTS and key not in AMOUNTS:
        said = DEFAULTS[key]
        return int(str(said)) if key in BARE else said
    if key == "fabric":
        return AUTO
    if known.is_map or known.is_list or key == "command":
        return {} if known.is_map else []
    return None if "null" in _schema(key, known).get("type", ()) else ""
