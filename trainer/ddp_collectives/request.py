"""Flags of ``ddp-launch collectives``, checked.

Standard library only, so that the launcher refuses a wrong flag before it starts a rank, and without torch.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddp_collectives.errors import BadRequest
from ddp_collectives.sizes import parse_sizes
from ddp_trainer.net.arguments import ArgumentParser

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
        description="Check and measure the collectives between all ranks. It also takes torchrun's flags, the same on "
        "every node. Exit codes: 0 for success, 1 for a wrong result or a lost peer, 2 for an invalid flag or file, "
        "3 if it is slower than the earlier run, than a minimum, or than other nodes.",
        allow_abbrev=False,
    )
    default = " (default: %(default)s)"
    for names, metavar, value, text in (
        (["--operations"], "LIST", "all", f"operations, separated by commas, or all{default}: {', '.join(NAMES)}"),
        (["--dtype"], "LIST", "float32", f"dtypes, separated by commas{default}: {', '.join(DTYPES)}"),
        (["--backend"], "NAME", "auto", f"gloo, nccl, or auto for nccl if there are GPUs{default}"),
        (["--sizes"], "SIZES", "", "a range, as in 4KiB:64MiB, or a list, as in 4KiB,1MiB"),
        (["--factor"], "N", "4", f"factor from one size of the range to the next{default}"),
        (["--repeats"], "N", "20", f"timed calls of each size{default}"),
        (["--warmup"], "N", "5", f"calls of each size before the timed ones{default}"),
        (["--seed"], "N", "0", f"seed of the values that results are checked with{default}"),
        (["--timeout"], "SECONDS", "120", f"time without an answer after which a peer is lost{default}"),
        (["-o", "--output"], "FORM", "table", f"table or json{default}"),
        (["--compare"], "FILE", "", "JSON of an earlier run, a file on the node of rank 0"),
        (["--tolerance"], "PERCENT", "10%", f"with --compare: allowed growth of a median{default}"),
        (["--floors"], "FILE", "auto", f"minimum that each GPU must reach: auto, off, or a JSON file{default}"),
        (["--pairs"], "N", "0", f"find a bad node in N rounds of two nodes each, instead of measuring all{default}"),
        (["--pair-timeout"], "SECONDS", "30", f"with --pairs: time after which a pair has failed{default}"),
        (
            ["--slow-below"],
            "PERCENT",
            "70%",
            f"with --pairs: share of the others' bandwidth, of a slow pair{default}",
        ),
    ):
        made.add_argument(*names, metavar=metavar, default=value, help=text)
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
