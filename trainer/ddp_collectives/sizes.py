"""Parser and formatter of message sizes."""

from __future__ import annotations

import re
from typing import Final

from ddp_collectives.errors import BadRequest

UNITS: Final = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
"""Units in bytes. A single letter is binary, as in nccl-tests."""
DECIMAL: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9}

LARGEST_BYTES: Final = 2**36
MOST: Final = 64
"""Most sizes in one run."""


def parse_size(text: str) -> int:
    """Return the size in bytes. Raises BadRequest.

    >>> [parse_size(each) for each in ("4KiB", "1.5M", "512", "1 MB")]
    [4096, 1572864, 512, 1000000]
    """
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", text)
    unit = (UNITS | DECIMAL).get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if not 1 <= size <= LARGEST_BYTES:
        raise BadRequest(
            f"{text!r} is not a size of a message; write it as 4KiB or 64MiB, at most {show(LARGEST_BYTES)}."
        )
    return size


def parse_sizes(text: str, factor: int) -> tuple[int, ...]:
    """Return the sizes in bytes of a list with commas, or of ``MIN:MAX``. Raises BadRequest.

    A range grows in steps of ``factor`` and always includes MAX.

    >>> parse_sizes("1KiB:20KiB", 4)
    (1024, 4096, 16384, 20480)
    >>> parse_sizes("4KiB,1KiB", 4)
    (1024, 4096)
    """
    if ":" not in text:
        return tuple(sorted({parse_size(part) for part in text.split(",") if part.strip()})) or _none(text)
    low, high = (parse_size(part) for part in text.split(":", 1))
    if low > high:
        raise BadRequest(f"--sizes {text!r} begins above its end; write the smaller size first.")
    sizes = [low]
    while sizes[-1] * factor < high:
        sizes.append(sizes[-1] * factor)
    if len(sizes) >= MOST:
        raise BadRequest(f"--sizes {text!r} in steps of {factor} are more than {MOST} sizes; raise --factor.")
    return tuple(dict.fromkeys([*sizes, high]))


def _none(text: str) -> tuple[int, ...]:
    raise BadRequest(f"--sizes {text!r} names no size; write it as 4KiB:64MiB or 4KiB,1MiB.")


def show(size_bytes: int) -> str:
    """Return the shortest text of a size.

    >>> [show(each) for each in (12, 4096, 5000, 3 * 2**30)]
    ['12 B', '4 KiB', '4.883 KiB', '3 GiB']
    """
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= unit:
            return f"{float(f'{size_bytes / unit:.4g}'):g} {name}"
    return f"{size_bytes} B"
