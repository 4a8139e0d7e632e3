"""Quantities: memory, CPU time, nodes and durations, parsed from text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.text_table import pluralize


class BadValue(ValueError):
    """Raised for an invalid value; ``message`` continues a sentence that starts with the value's location."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


NUMBER: Final = r"(\d{1,19}(?:\.\d{1,9})?)"
BINARY: Final = {"Ei": 2**60, "Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
DECIMAL: Final = {"E": 10**18, "P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3, "": 1}
SECONDS: Final[Mapping[str, int]] = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
LARGEST_BYTES: Final = 2**63 - 1
"""Limit of Kubernetes' 64-bit quantities."""
LARGEST_SECONDS: Final = 2**31 - 1
DURATION: Final = r"(\d{1,10})([dhms]?)"


@dataclass(frozen=True, order=True, slots=True)
class Memory:
    """Amount of memory."""

    size_bytes: int

    PATTERN = NUMBER + "(Ei|Pi|Ti|Gi|Mi|Ki|E|P|T|G|M|k)"

    def __post_init__(self) -> None:
        if not 0 < self.size_bytes <= LARGEST_BYTES:
            raise BadValue(f"'{self.size_bytes}' is out of range for an amount of memory", hint="Write it as '4Gi'.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``4Gi``, ``512Mi`` or ``2G``; a number without a unit is invalid. Raises BadValue.

        >>> Memory.parse("1.5Gi").size_bytes
        1610612736
        """
        if re.fullmatch(NUMBER, text):
            raise BadValue(f"'{text}' has no unit", hint=f"Write it with one, for example '{text}Gi'.")
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(f"'{text}' is not an amount of memory", hint="Write it as '4Gi' or '512Mi'.")
        return cls(int(Fraction(match[1]) * (BINARY | DECIMAL)[match[2]]))

    def __str__(self) -> str:
        """Return the shortest exact notation with a unit."""
        for suffix, unit in BINARY.items():
            if self.size_bytes % unit == 0:
                return f"{self.size_bytes // unit}{suffix}"
        thousands, rest = divmod(self.size_bytes, 1000)
        return f"{thousands}.{rest:03}".rstrip("0").rstrip(".") + "k"


@dataclass(frozen=True, order=True, slots=True)
class Cpu:
    """CPU time in thousandths of a core."""

    millis: int

    PATTERN = NUMBER + "(m)?"

    def __post_init__(self) -> None:
        if not 0 < self.millis <= 10**9:
            raise BadValue(f"'{self.millis}m' is out of range for a number of cores", hint="Write it as '4' or '500m'.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``4``, ``1.5`` or ``500m``. Raises BadValue.

        >>> str(Cpu.parse("1.5"))
        '1500m'
        """
        match = re.fullmatch(cls.PATTERN, text)
        millis = Fraction(match[1]) * (1 if match[2] else 1000) if match else Fraction(1, 2)
        if millis.denominator != 1:
            raise BadValue(f"'{text}' is not a number of cores", hint="Write it as '4', '1.5' or '500m'.")
        return cls(int(millis))

    def __str__(self) -> str:
        return f"{self.millis // 1000}" if self.millis % 1000 == 0 else f"{self.millis}m"


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Minimum and maximum number of nodes of a job."""

    minimum: int
    maximum: int

    LARGEST = 100_000
    PATTERN = r"(\d{1,9})(?::(\d{1,9}))?"

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise BadValue(
                f"'{self.minimum}:{self.maximum}' has a minimum ({self.minimum}) above the maximum ({self.maximum})",
                hint=f"Write the smaller number first: '{self.maximum}:{self.minimum}'.",
            )
        if self.minimum < 1 or self.maximum > self.LARGEST:
            raise BadValue(
                f"'{self}' is not a valid number of nodes", hint=f"A job has between 1 and {self.LARGEST} nodes."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse torchrun's notation ``4`` or ``2:8``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(
                f"'{text}' is not a valid number of nodes", hint="Write '4', or '2:8' for at least 2 and at most 8."
            )
        return cls(int(match[1]), int(match[2] or match[1]))

    @property
    def is_elastic(self) -> bool:
        """True if the number may change while the job runs."""
        return self.minimum < self.maximum

    def __str__(self) -> str:
        return f"{self.minimum}:{self.maximum}" if self.is_elastic else str(self.minimum)


def parse_seconds(text: str) -> int:
    """Parse a duration such as ``90``, ``90s``, ``2m``, ``1h`` or ``7d`` as whole seconds. Raises BadValue.

    >>> parse_seconds("2m")
    120
    """
    match = re.fullmatch(DURATION, text)
    seconds = int(match[1]) * SECONDS[match[2]] if match else -1
    if not 0 <= seconds <= LARGEST_SECONDS:
        raise BadValue(f"'{text}' is not a duration", hint="Write it as '90s', '2m', '1h' or '7d'.")
    return seconds


def validate_node_count(bounds: tuple[int, int], name: str, nodes: int) -> None:
    """Raise UsageError if ``nodes`` is outside the range that the job can have while it runs."""
    low, high = bounds
    if not low <= nodes <= high:
        can = f"between {low} and {high} nodes" if low < high else f"exactly {pluralize(low, 'node')}"
        raise UsageError(
            f"Job '{name}' cannot have {pluralize(nodes, 'node')}: it was submitted for {can}.",
            hint="Submit it again with other --nnodes." if low == high else "Choose a number between them.",
        )
