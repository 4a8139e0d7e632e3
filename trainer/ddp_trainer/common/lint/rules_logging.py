"""Lint rules for NCCL's log output and its destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.lint import sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity, where
from ddp_trainer.common.lint.values import split_list

_LEVELS: Final = ("VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE")
_LOUD: Final = ("INFO", "TRACE")
_SUBSYSTEMS: Final = frozenset(
    {
        *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY"),
        *("NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
    }
)
_STREAMS: Final = ("/dev/stdout", "/dev/stderr")
_MANY_RANKS: Final = 8


_UNKNOWN_DEBUG_LEVEL: Final = Rule(
    when=where(lambda value: value.upper() not in {"", *_LEVELS}, "NCCL_DEBUG"),
    id="N16",
    looks_for="`NCCL_DEBUG` with a word that is not a level, such as `WARN,VERSION`",
    message="{name}={value} is not a level, so NCCL reports nothing.",
    fix="Use WARN; the others are VERSION, INFO and TRACE.",
    source=sources.env("NCCL_DEBUG"),
)


@Rule(
    id="N17",
    looks_for="unknown words in `NCCL_DEBUG_SUBSYS`",
    message="{name} names {value}, which is not a subsystem.",
    fix="Delete it; there are INIT, NET, GRAPH, ENV, COLL and others.",
    source=sources.env("NCCL_DEBUG_SUBSYS"),
)
def _no_subsystem(environment: Environment, _: Facts) -> Iterator[Found]:
    for word in split_list(environment.get("NCCL_DEBUG_SUBSYS", "").removeprefix("^")):
        if word.upper() not in _SUBSYSTEMS:
            yield Found("NCCL_DEBUG_SUBSYS", word)


@Rule(
    id="N18",
    looks_for="`NCCL_DEBUG_FILE` without `%h` and `%p`, or with `~`",
    message="{name}={value} is one file for several processes, or has a ~ that is not expanded: logs are lost.",
    fix="Use a whole path with %h and %p in it, such as /var/run/ddp/nccl.%h.%p.",
    source=sources.env("NCCL_DEBUG_FILE"),
)
def _one_file_for_all(environment: Environment, _: Facts) -> Iterator[Found]:
    file = environment.get("NCCL_DEBUG_FILE", "")
    if file and file not in _STREAMS and ("~" in file or "%h" not in file or "%p" not in file):
        yield Found("NCCL_DEBUG_FILE", file)


@Rule(
    id="N38",
    looks_for="`NCCL_DEBUG=INFO` or `TRACE` for more than 8 ranks, without a file",
    message="{name}={value} fills the log with the lines of {detail} ranks.",
    fix="Use WARN, or set NCCL_DEBUG_FILE.",
    source=sources.env("NCCL_DEBUG"),
)
def _debug_level_verbose(environment: Environment, facts: Facts) -> Iterator[Found]:
    ranks = (facts.nodes or 1) * (facts.nproc or 1)
    value = environment.get("NCCL_DEBUG", "").strip().upper()
    if value in _LOUD and ranks > _MANY_RANKS and not environment.get("NCCL_DEBUG_FILE"):
        yield Found("NCCL_DEBUG", value, str(ranks))


@Rule(
    id="N39",
    looks_for="`NCCL_DEBUG_SUBSYS`, `NCCL_DEBUG_FILE` without `NCCL_DEBUG`",
    message="{name}={value} has no effect: NCCL_DEBUG is not set, so nothing is written.",
    fix="Set NCCL_DEBUG, or delete it.",
    source=sources.env("NCCL_DEBUG_SUBSYS"),
)
def _details_of_nothing(environment: Environment, _: Facts) -> Iterator[Found]:
    if not environment.get("NCCL_DEBUG"):
        for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
            if environment.get(name):
                yield Found(name, environment[name])


@Rule(
    id="N40",
    severity=Severity.INFO,
    looks_for="no `NCCL_DEBUG` where GPUs of several nodes work together",
    message="{name} is not set, and NCCL does not say why something failed.",
    fix="Set NCCL_DEBUG=WARN, which costs nothing while all is well.",
    source=sources.env("NCCL_DEBUG"),
)
def _debug_level_unset(environment: Environment, facts: Facts) -> Iterator[Found]:
    if facts.gpus and (facts.nodes or 1) > 1 and not environment.get("NCCL_DEBUG"):
        yield Found("NCCL_DEBUG")
