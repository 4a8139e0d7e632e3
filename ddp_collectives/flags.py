"""Flags and errors of ``ddp-launch collectives``.

Standard library only, so that the launcher refuses a wrong flag before it starts a rank, and without torch.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ddp_trainer.net.arguments import ArgumentParser

PROGRAM: Final = "ddp-launch collectives"
OPERATIONS: Final = ("broadcast", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
DEFAULT_SIZES: Final = {"gloo": "4KiB:16MiB", "nccl": "4KiB:1GiB"}
"""Bandwidth over NVLink and InfiniBand still grows at 128 MiB; that of TCP does not."""
SLOWER: Final = 3
"""Exit code if all results are correct, and a node is slow."""
_SIZE_STEP: Final = 4
_LARGEST_BYTES: Final = 2**36


class CollectivesError(Exception):
    """A peer is lost, or a collective failed. Reported in one sentence."""

    exit_code: ClassVar[int] = 1


class BadRequest(CollectivesError):
    """A flag or a machine does not fit the request."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRequest:
    """Parameters of one run of the measurement."""

    operations: Sequence[str]
    backend: str
    sizes: Sequence[int]
    """Message sizes in bytes; empty for the default of the backend."""
    repeats: int
    warmup: int
    timeout: int
    """Seconds without an answer after which a peer is lost."""
    output: str
    pairs: int
    """Rounds of pairs of nodes, which replace the operations; 0 for none."""
    pair_timeout: int
    """Seconds after which a pair has failed."""
    slow_below: float
    """Share of the bandwidth of other pairs below which a pair is slow."""

    def sizes_for(self, backend: str) -> Sequence[int]:
        """Return the size of each message in bytes."""
        return self.sizes or parse_sizes(DEFAULT_SIZES[backend])


def parser() -> ArgumentParser:
    """Return the parser of the flags that are not torchrun's."""
    made = ArgumentParser(
        BadRequest,
        prog=PROGRAM,
        usage=f"{PROGRAM} [torchrun's flags] [flags]",
        description="Check and measure the collectives between all ranks. It also takes torchrun's flags, the same on "
        "every node. Exit codes: 0 for success, 1 for a wrong result or a lost peer, 2 for an invalid flag, 3 if nodes "
        "are slower than others.",
        allow_abbrev=False,
    )
    add, default = made.add_argument, " (default: %(default)s)"
    text = f"operations, separated by commas (default: all): {', '.join(OPERATIONS)}"
    add("--operations", metavar="LIST", default=OPERATIONS, type=_parse_operations, help=text)
    text = f"gloo, nccl, or auto for nccl if there are GPUs{default}"
    add("--backend", metavar="NAME", default="auto", choices=("auto", "gloo", "nccl"), help=text)
    text = "a range in steps of four, as in 4KiB:64MiB, or a list, as in 4KiB,1MiB"
    add("--sizes", default=(), type=parse_sizes, help=text)
    for flag, metavar, value, least, text in (
        ("--repeats", "N", 20, 1, "timed calls of each size"),
        ("--warmup", "N", 5, 0, "calls of each size before the timed ones"),
        ("--timeout", "SECONDS", 120, 1, "time without an answer after which a peer is lost"),
        ("--pairs", "N", 0, 0, "find a bad node in N rounds of two nodes each, instead of measuring all"),
        ("--pair-timeout", "SECONDS", 30, 1, "with --pairs: time after which a pair has failed"),
    ):
        add(flag, metavar=metavar, default=value, type=_at_least(least), help=text + default)
    text = "with --pairs: share of the others' bandwidth, of a slow pair (default: 70%%)"
    add("--slow-below", metavar="PERCENT", default=0.7, type=_parse_percent, help=text)
    add("-o", "--output", default="table", choices=("table", "json"), help=f"output format{default}")
    return made


def parse(argv: Sequence[str]) -> tuple[MeasurementRequest, list[str]]:
    """Return the request of a command line, and the words that are not flags of this module.

    Raises:
        BadRequest: A flag has an invalid value.
        SystemExit: ``--help`` is given.
    """
    values, rest = parser().parse_known_args(list(argv))
    return MeasurementRequest(**vars(values)), rest


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes of a list with commas, or of ``MIN:MAX`` in steps of four. A range includes MAX.

    >>> parse_sizes("1KiB:20K"), parse_sizes("4KiB,512")
    ((1024, 4096, 16384, 20480), (512, 4096))
    """
    if ":" not in text:
        return tuple(sorted({_parse_size(part) for part in text.split(",")}))
    low, high = map(_parse_size, text.split(":", 1))
    if low > high:
        raise ArgumentTypeError(f"{text!r} begins above its end; write the smaller size first")
    sizes = [low]
    while sizes[-1] * _SIZE_STEP < high:
        sizes.append(sizes[-1] * _SIZE_STEP)
    return tuple(dict.fromkeys([*sizes, high]))


def format_size(size_bytes: int) -> str:
    """Return the shortest text of a size.

    >>> [format_size(each) for each in (12, 4096, 5000, 3 * 2**30)]
    ['12 B', '4 KiB', '4.883 KiB', '3 GiB']
    """
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,12})\s*(?:([KMG])(?:iB)?|B)?\s*", text, re.IGNORECASE)
    size = int(match[1]) * 1024 ** (" KMG".index(match[2].upper()) if match[2] else 0) if match else 0
    if not 1 <= size <= _LARGEST_BYTES:
        largest = format_size(_LARGEST_BYTES)
        raise ArgumentTypeError(f"{text!r} is not a size; write it as 4KiB or 64MiB, at most {largest}")
    return size


def _parse_operations(text: str) -> tuple[str, ...]:
    names = [word.strip().replace("-", "_") for word in text.split(",")]
    if unknown := [name for name in names if name not in OPERATIONS]:
        raise ArgumentTypeError(f"{unknown[0]!r} is unknown; there are {', '.join(OPERATIONS)}")
    return tuple(dict.fromkeys(names))


def _at_least(least: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < 10**9:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return parse_number


def _parse_percent(text: str) -> float:
    return _at_least(1)(text.removesuffix("%")) / 100
