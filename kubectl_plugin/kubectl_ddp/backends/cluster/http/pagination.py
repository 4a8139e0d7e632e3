"""Pages of a long list, with the next page requested while the current one is parsed.

A list of ten thousand pods is 80 MB of JSON, of which a command needs little. Only two pages and the reduced objects
are in memory. ``metadata.managedFields`` are removed before a page is parsed: API servers cannot omit them, nothing
here reads them, and decoding them takes half of the time and memory. Two formats of long lists are supported; a list in
any other format is parsed with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.concurrency import Future
from kubectl_ddp.util.process import at_rest

Fetch = Callable[[str], bytes]
"""Function that reads the page of a token; the first page for an empty token."""

HEAD_BYTES: Final = 4096
TOKEN: Final = re.compile(rb'^\{(?:"kind":"\w+","apiVersion":"[\w./-]+",)?"metadata":\{[^{}]*?"continue":"([^"\\]+)"')
"""Pattern of the continue token. The API server writes a list's metadata first; otherwise, the page is parsed first."""


def iter_pages(fetch: Fetch) -> Iterator[Object]:
    """Yield the pages of a list. Raises the errors of ``fetch``, and ValueError for anything but a list in JSON."""
    body = fetch("")
    while True:
        found = TOKEN.match(body[:HEAD_BYTES])
        coming = _prefetch(fetch, found[1].decode()) if found is not None else None
        page = _decode_page(body)
        del body
        yield page
        token = str((page.get("metadata") or {}).get("continue") or "")
        del page
        if not token:
            return
        body = coming.result() if coming is not None else fetch(token)


def _decode_page(body: bytes) -> Object:
    """Parse one page. If the removal of ``managedFields`` breaks the JSON, the page is parsed with them."""
    lean = without_records(body)
    try:
        return decode_json(lean)
    except ValueError:
        if lean is body:
            raise
        return decode_json(body)


def _prefetch(fetch: Fetch, token: str) -> Future[bytes]:
    return Future(lambda: fetch(token))


def decode_json(body: bytes) -> Object:
    """Parse a JSON object. Raises ValueError for any other JSON.

    The garbage collector is disabled meanwhile, because JSON has no cycles and the search for them takes a third of the
    time.
    """
    with at_rest():
        found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} is not an object")  # noqa: TRY004 - the same class as for invalid JSON
    return found


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
