"""Pages of a long list, with the next page requested while the current one is parsed.

A list of ten thousand pods is 80 MB of JSON, of which a command needs little. Only two pages and the reduced objects
are in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

from kubectl_ddp.backends.cluster.http.managed_fields import without_records
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.future import Future
from kubectl_ddp.util.gc_tuning import at_rest

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
