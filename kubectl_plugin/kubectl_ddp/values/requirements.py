"""Requirements of a job: packages that its image lacks, as pip's requirements file lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kubectl_ddp.values.parsers import Raw, Schema, text, text_list
from kubectl_ddp.values.quantity import BadValue

SCHEMA: Final[Schema] = {"type": ["array", "string"], "items": {"type": "string"}}
_LOCAL: Final = re.compile(r"-r|--requirement|-c|--constraint|-e|--editable|-f|--find-links|[./~]|file:|\S+ *@ *file:")
"""Start of a line that names a file of the machine on which it is read."""
_CREDENTIALS: Final = re.compile(r"://[^/\s]+@")
_COMMENT: Final = re.compile(r"(^|\s)#.*")


def parse_requirements(raw: Raw) -> tuple[str, ...]:
    """Return the lines of a requirements file, given as its path or as a list of lines. Comments are left out."""
    lines = text_list(raw) if isinstance(raw, (list, tuple)) else _lines_of(text(raw))
    found = tuple(line for each in lines if (line := _COMMENT.sub("", each).strip()))
    for line in found:
        if _LOCAL.match(line):
            raise BadValue(
                f"'{line}' names a file of this machine, and pods do not have it",
                hint="Write the packages themselves, or make an image of them with --build.",
            )
        if _CREDENTIALS.search(line):
            raise BadValue(
                "a line has credentials, and everyone who may read the job can read them",
                hint="Keep the URL in a Secret: --secret-env PIP_INDEX_URL=SECRET:KEY.",
            )
    if not found:
        raise BadValue("there is no package", hint="Write one requirement on each line.")
    return found


def _lines_of(path: str) -> list[str]:
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadValue(f"the file '{path}' cannot be read: {why}", hint="Name a requirements file of pip.") from None
    return content.replace("\\\n", " ").splitlines()
