"""Keyword arguments of the Python client: ``kubectl_ddp/client/job_keys.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.spec.fields import FILE_KEYS
from kubectl_ddp.spec.job_key import Field, to_kebab_case

_HEAD: Final = '''"""Keyword arguments of :meth:`kubectl_ddp.client.client.Client.submit`, written by ``make docs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class JobKeys(TypedDict, total=False):
    """Keys of a job file, in snake_case."""

'''


def module_text() -> str:
    """Return the text of the module."""
    return _HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for key, field in FILE_KEYS.items():
        yield f'    {to_kebab_case(key).replace("-", "_")}: {_type_of(field)}\n    """{field.help}"""\n'


def _type_of(field: Field) -> str:
    """Return the Python type of a key's value.

    >>> [_type_of(FILE_KEYS[key]) for key in ("nnodes", "memory", "env", "mounts", "command", "script")]
    ['int | str', 'str', 'Mapping[str, str]', 'Sequence[str]', 'str | Sequence[str]', 'str | PathLike[str]']
    """
    if field.choices:
        return f"Literal[{', '.join(json.dumps(str(choice)) for choice in field.choices)}]"
    if field.name in {"script", "code"}:
        return "str | PathLike[str]"
    kinds = field.schema["type"]
    if isinstance(kinds, str):
        return {"object": "Mapping[str, str]", "array": "Sequence[str]"}.get(kinds, "str")
    if field.is_object:
        return "Mapping[str, Any] | str"
    if "array" in kinds:
        return "str | Sequence[str]"
    other = "" if "boolean" in kinds else "".join(kind for kind in kinds if kind != "string")  # boolean: any text
    return {"integer": "int | str", "number": "float | str"}.get(other, "str")
