"""Removal of ``metadata.managedFields`` from a list before it is parsed. These fields are half of its bytes.

API servers cannot omit the fields, nothing here reads them, and decoding them takes half of the time and memory of a
long list. Two formats of long lists are supported. A list in any other format is left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BEGIN: Final = b',"managedFields":['
"""Start of the fields. Quotes in a JSON string are escaped, so this is always a key."""

ENDS: Final[Mapping[bytes, bytes]] = {
    b'{"kind":"PodList",': b']},"spec":',  # in the order of Kubernetes' own types: last field of the metadata
    b'{"apiVersion":"': b'],"name":"',  # in alphabetical order, as in custom resources
}
"""Start of a list → the text after the fields, which cannot be one of their own keys, such as f:spec."""

ANOTHER: Final = b'"uid":"'
"""Key of the next object. If it is reached, the end of the fields was missed."""


def without_records(body: bytes) -> bytes:
    """Return a list in JSON without the fields if its format is known, else unchanged."""
    end = next((end for head, end in ENDS.items() if body.startswith(head)), None)
    if end is None:
        return body
    parts: list[bytes] = []
    kept = 0
    while (begin := body.find(BEGIN, kept)) >= 0:
        after = body.find(end, begin)
        if after < 0 or body.find(ANOTHER, begin, after) >= 0:
            return body
        parts.append(body[kept:begin])
        kept = after + 1
    return b"".join([*parts, body[kept:]]) if parts else body
