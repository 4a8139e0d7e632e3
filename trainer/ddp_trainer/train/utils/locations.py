"""Where checkpoints and data are: a directory, or a URL of an object store.

:func:`parse_location` accepts both in options and variables. It imports no client of a store.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ddp_trainer.common.constants import STORE_CLIENTS
from ddp_trainer.train.utils.errors import BadConfig

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


class StorageUrl(str):
    """URL of a prefix in a bucket, such as ``s3://bucket/run``; without a slash at the end."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """Scheme, for example ``s3``."""
        return self.partition("://")[0]

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.partition("://")[2].partition("/")[0]


def parse_location(text: str) -> Path | StorageUrl:
    """Return a path, also of a ``file://`` URL, or the URL of a prefix in an object store.

    >>> parse_location("s3://bucket/run/"), str(parse_location("file:///data/run"))
    ('s3://bucket/run', '/data/run')

    Raises:
        BadConfig: The URL names no bucket, or a store that is not supported.
    """
    match = _URL.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    if scheme == "file":
        if not rest.startswith("/"):
            raise BadConfig(f"{text} has no absolute path.", hint="Give file:///DIR, with three slashes.")
        return Path(unquote(rest))
    if scheme not in STORE_CLIENTS:
        known = ", ".join(f"{scheme}://" for scheme in ["file", *STORE_CLIENTS])
        raise BadConfig(f"{text} has the scheme {scheme!r}, which is not supported.", hint=f"Give one of {known}.")
    bucket, _, prefix = rest.partition("/")
    if not bucket or any(part in {"", ".", ".."} for part in prefix.split("/") if prefix):
        raise BadConfig(f"{text} is not a URL of a bucket.", hint=f"Give {scheme}://BUCKET/PREFIX.")
    return StorageUrl(f"{scheme}://{rest}")
