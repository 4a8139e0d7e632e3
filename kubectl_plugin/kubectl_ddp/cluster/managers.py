"""The record of who set which field, taken out of a list before the list is taken apart: it is half of its bytes.

No API server can be asked to leave ``metadata.managedFields`` out, nobody here reads it, and to decode it takes half of
the time and of the memory of a long list. The two shapes in which the API server writes lists that are long here are
known; where a list has another, or a doubt is left, it stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BEGIN: Final = b',"managedFields":['
"""A quote inside of a JSON string is escaped, so that this is the key, wherever it stands."""

ENDS: Final[Mapping[bytes, bytes]] = {
    b'{"kind":"PodList",': b']},"spec":',  # fields in the order of Kubernetes' own types: last of the metadata
    b'{"apiVersion":"': b'],"name":"',  # fields in the order of the alphabet, as of custom resources
}
"""How a list begins → what follows the record in its objects, and is none of its own keys, as f:spec is."""

ANOTHER: Final = b'"uid":"'
"""Only a record whose end was missed reaches as far as the next object's uid."""


def without_records(body: bytes) -> bytes:
    """A list in JSON, without the records if it is one of the shapes that are known."""
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
