"""Flags of ``ddp-launch collectives``, checked.

Standard library only, so that the launcher refuses a wrong flag before it starts a rank, and without torch.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddp_trainer.net.arguments import ArgumentParser
from ddp_trainer.preflight.collectives.errors import BadRequest
from ddp_trainer.preflight.collectives.sizes import parse_sizes

NAMES: Final = (
    *("broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"),
    *("send_recv", "barrier"),
)
DTYPES: Final = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8")
BACKENDS: Final = ("auto", "gloo", "nccl")
DEFAULT_SIZES: Final = {"gloo": "4KiB:16MiB", "nccl": "4KiB:1GiB"}
"""Bandwidth over NVLink and InfiniBand still grows at 128 MiB; that of TCP does not."""
AUTO: Final = "auto"
OFF: Final = "off"
LEAST_REPEATS: Final = 3
"""Fewest repeats that have quartiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRequest:
    """Parameters of one run of the measurement."""

    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    backend: str
    sizes: str
    """Message sizes; empty for the default of the backend."""
    factor: int
    repeats: int
    warmup: int
    seed: int
    timeout_seconds: float
    output: str
    compare: str
    """File of an earlier run; empty for none."""
    tolerance: float
    """Accepted growth of a median, as a share."""
    floors: str
    """``auto``, ``off``, or a site's own file."""
    pairs: int
    """Rounds of pairs of nodes, which replace the operations; 0 for none."""
    pair_timeout_seconds: float
    slow_share: float
    """Share of the bandwidth of other pairs below which a pair is slow."""

    @property
    def has_threshold_file(self) -> bool:
        """True if the floors come from a file."""
        return self.floors not in {AUTO, OFF}

    def sizes_of(self, backend: str) -> tuple[int, ...]:
        """Return the size of each message in bytes.

        Raises:
            BadRequest: The sizes are invalid.
        """
        return parse_sizes(self.sizes or DEFAULT_SIZES[backend], self.factor)


def parser(program: str = "ddp-launch collectives") -> argparse.ArgumentParser:
    """Return the parser of the flags that are not torchrun's."""
    made = ArgumentParser(
        BadRequest,
        prog=program,
        usage=f"{program} [torchrun's flags] [flags]",
        description="Check and measure the collectives between all ranks; takes torchrun's flags, on every node the "
        "same. Exit codes: 0 all right, 1 a wrong result or a lost peer, 2 an invalid flag or file, 3 "
        "slower than the earlier run, than a floor, or than other nodes.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--operations", metavar="LIST", default="all", help=f"with commas; all, or some of {', '.join(NAMES)}")
    add("--dtype", metavar="LIST", default="float32", help=f"with commas, of {', '.join(DTYPES)}")
    add("--backend", metavar="NAME", default="auto", help="gloo, nccl or auto: nccl where there are GPUs")
    add("--sizes", metavar="SIZES", default="", help="4KiB:64MiB in steps of --factor, or a list: 4KiB,1MiB")
    add("--factor", metavar="N", default="4", help="from one size to the next")
    add("--repeats", metavar="N", default="20", help="timed calls of each size")
    add("--warmup", metavar="N", default="5", help="calls before them")
    add("--seed", metavar="N", default="0", help="of the pattern that results are checked with")
    add("--timeout", metavar="SECONDS", default="120", help="after which a peer that stays silent is lost")
    add("-o", "--output", metavar="FORM", default="table", help="table or json")
    add("--compare", metavar="FILE", default="", help="the JSON of an earlier run, on the node of rank 0")
    add("--tolerance", metavar="PERCENT", default="10%", help="allowed growth of a median, beyond noise")
    add("--floors", metavar="FILE", default="auto", help="what each GPU must reach: auto, off, or a JSON file (auto)")
    add("--pairs", metavar="N", default="0", help="instead, locate a bad node: rounds of two nodes at a time (0)")
    add("--pair-timeout", metavar="SECONDS", default="30", help="with --pairs: after which a pair has failed")
    add("--slow-below", metavar="PERCENT", default="70%", help="with --pairs: of the bandwidth of other pairs")
    return made


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the flags of this module, each with its value, and those of torchrun.

    Raises:
        BadRequest: A flag of this module lacks its value.
        SystemExit: ``--help`` is given.
    """
    told, rest = parser().parse_known_args(list(argv))
    return [f"--{name.replace('_', '-')}={value}" for name, value in vars(told).items()], rest


def parse(argv: Sequence[str]) -> MeasurementRequest:
    """Return the request that the flags describe.

    Raises:
        BadRequest: A flag has an invalid value.
    """
    told = parser().parse_args(list(argv))
    request = MeasurementRequest(
        operations=NAMES if told.operations == "all" else _parse_names("--operations", told.operations, NAMES),
        dtypes=_parse_names("--dtype", told.dtype, DTYPES),
        backend=_parse_names("--backend", told.backend, BACKENDS)[0],
        sizes=told.sizes,
        factor=_parse_int("--factor", told.factor, 2),
        repeats=_parse_int("--repeats", told.repeats, LEAST_REPEATS),
        warmup=_parse_int("--warmup", told.warmup, 0),
        seed=_parse_int("--seed", told.seed, 0),
        timeout_seconds=float(_parse_int("--timeout", told.timeout, 1)),
        output=_parse_names("--output", told.output, ("table", "json"))[0],
        compare=told.compare,
        tolerance=_parse_int("--tolerance", told.tolerance.removesuffix("%"), 0) / 100,
        floors=told.floors,
        pairs=_parse_int("--pairs", told.pairs, 0),
        pair_timeout_seconds=float(_parse_int("--pair-timeout", told.pair_timeout, 1)),
        slow_share=_parse_int("--slow-below", told.slow_below.removesuffix("%"), 1) / 100,
    )
    request.sizes_of("gloo")
    return request


def _parse_names(flag: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = [word.strip().replace("-", "_") for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise BadRequest(f"{flag} {word!r} is unknown; {hint}")
    if not words:
        raise BadRequest(f"{flag} names nothing; there are {', '.join(known)}.")
    return tuple(dict.fromkeys(words))


def _parse_int(flag: str, text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) < 10**9:
        raise BadRequest(f"{flag} {text!r} is not a whole number from {least}.")
    return int(text)
