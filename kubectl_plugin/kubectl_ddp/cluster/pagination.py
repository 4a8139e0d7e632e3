"""The pages of a long list: the next one is on its way while the last one is taken apart.

A list of ten thousand pods is 80 MB of JSON, of which a command wants little: what each object is reduced to is all
that stays in memory, beside two pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.managers import without_records
from kubectl_ddp.cluster.pod_list import POD_LIST, pod_list
from kubectl_ddp.collector import at_rest
from kubectl_ddp.future import Future

Fetch = Callable[[str], bytes]
"""Reads the page that a token stands for; the first one for an empty token."""

HEAD_BYTES: Final = 4096
TOKEN: Final = re.compile(rb'^\{(?:"kind":"\w+","apiVersion":"[\w./-]+",)?"metadata":\{[^{}]*?"continue":"([^"\\]+)"')
"""The API server writes a list's metadata before its items; where it does not, the page is taken apart first."""


def iter_pages(fetch: Fetch) -> Iterator[Object]:
    """Every page of a list, in order. Raises what ``fetch`` raises, and ValueError for what is no list in JSON."""
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
    """One page; where an object holds such a record elsewhere than an API server does, with all of its records."""
    if body.startswith(POD_LIST):
        with suppress(ValueError), at_rest():
            return pod_list(body)  # in half of the time
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
    """JSON that is an object. Raises ValueError for any other.

    The collector of cycles rests meanwhile: JSON has none, and looking for them in a page takes a third of the time.
    """
    with at_rest():
        found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} is no object")  # noqa: TRY004 - as the decoder says of bad JSON
    return found
