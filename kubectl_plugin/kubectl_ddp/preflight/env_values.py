"""Lint rules for values of environment variables of NCCL and torch that make a run fail, hang or compute wrong results.

They read the variables alone, so a job is checked before it runs, and ``ddp-launch`` does not repeat them in the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import (
    ENV,
    USE_NCCL2,
    Check,
    Environment,
    Facts,
    Finding,
    Severity,
    env,
    is_yes,
    issue,
    split_list,
    variables_against_survival,
)

TORCH_CUDA: Final = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
NVRX: Final = "https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html#known-issues"
EFA: Final = "https://github.com/awslabs/awsome-distributed-ai (efa-cheatsheet)"
_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LARGEST_IB_TIMEOUT: Final = 31
_MOST_SOCKETS: Final = 64
_ALGORITHMS: Final = ("ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_PLUGINS: Final = ("gib", "aws libfabric", "libfabric", "ofi")
_PLUGIN_VARIABLES: Final = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "FI_EFA_")
_OR_DELETE: Final = "Correct it, or delete it."


def number(text: str) -> int | None:
    """Return an integer in any base that C reads, or None for any other text.

    >>> [number(each) for each in ("22", "0x10", " -1 ", "010", "x", "")]
    [22, 16, -1, 8, None, None]
    """
    text = text.strip().lower()
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0") and digits.isdigit():
        text = text.replace("0", "0o", 1)
    try:
        return int(text, 0)
    except ValueError:
        return None


def is_one(text: str) -> bool:
    """Return whether a variable is the number 1."""
    return number(text) == 1


def is_zero(text: str) -> bool:
    """Return whether a variable is the number 0."""
    return number(text) == 0


def parse_selections(value: str) -> Iterator[tuple[bool, set[str]]]:
    """Yield whether the list is inverted and its words, for each function of ``NCCL_ALGO`` or ``NCCL_PROTO``.

    >>> list(parse_selections("Ring;allreduce:^Tree"))
    [(False, {'ring'}), (True, {'tree'})]
    """
    for part in split_list(value, ";"):
        chosen = part.rpartition(":")[2].strip()
        yield chosen.startswith("^"), {word.lower() for word in split_list(chosen.removeprefix("^"))}


def forces_ll128(protocols: str) -> bool:
    """Return whether a value of ``NCCL_PROTO`` names LL128."""
    return any("ll128" in words and not is_inverted for is_inverted, words in parse_selections(protocols))


def _check_sockets(environment: Environment, facts: Facts) -> Iterator[Finding]:
    threads = number(environment.get("NCCL_SOCKET_NTHREADS", "1")) or 1
    per_thread = number(environment.get("NCCL_NSOCKS_PERTHREAD", "1")) or 1
    if threads * per_thread > _MOST_SOCKETS:
        name = "NCCL_SOCKET_NTHREADS"
        message = (
            f"{name}={threads} times NCCL_NSOCKS_PERTHREAD={per_thread} is more than the 64 sockets that NCCL allows."
        )
        yield Finding("N19", name, message, "Lower one; 4 and 4 suit 100 Gb/s.", env(name))
    if (host := environment.get("NCCL_HOSTID", "").strip()) and facts.nodes != 1:
        message = f"NCCL_HOSTID={host} makes all nodes look like one host, between which shared memory is tried."
        yield Finding("N27", "NCCL_HOSTID", message, "Delete it.", ENV)


def _check_fabric(environment: Environment, _: Facts) -> Iterator[Finding]:
    timeout = number(environment.get("NCCL_IB_TIMEOUT", ""))
    if timeout is not None and not 1 <= timeout <= _LARGEST_IB_TIMEOUT:
        message = f"NCCL_IB_TIMEOUT={timeout} means no timeout: a failure becomes a hang."
        source = env("NCCL_IB_TIMEOUT")
        yield Finding("N12", "NCCL_IB_TIMEOUT", message, "Delete it: 20 is the default.", source)
    network = environment.get("NCCL_NET", "").strip().lower()
    needs_plugin = network in _PLUGINS or any(name.startswith(_PLUGIN_VARIABLES) for name in environment)
    if needs_plugin and environment.get("NCCL_NET_PLUGIN", "").strip().lower() == "none":
        message = "NCCL_NET_PLUGIN=none keeps the plugin of this fabric from being loaded."
        yield Finding("N24", "NCCL_NET_PLUGIN", message, "Delete it.", env("NCCL_NET_PLUGIN"))


def _check_nccl_values(environment: Environment, _: Facts) -> Iterator[Finding]:
    if is_one(environment.get("NCCL_MNNVL_ENABLE", "")) and is_zero(environment.get("NCCL_CUMEM_ENABLE", "")):
        message = "NCCL_MNNVL_ENABLE=1 needs what NCCL_CUMEM_ENABLE=0 switches off, and the start fails."
        source = env("NCCL_MNNVL_ENABLE")
        yield Finding("N14", "NCCL_CUMEM_ENABLE", message, "Delete NCCL_CUMEM_ENABLE.", source)
    protocols = environment.get("NCCL_PROTO", "")
    if forces_ll128(protocols):
        message = f"NCCL_PROTO={protocols} forces LL128, which corrupts data on platforms that do not support it."
        fix = "Delete it: where LL128 is supported NCCL uses it."
        yield Finding("N33", "NCCL_PROTO", message, fix, env("NCCL_PROTO"))
    for name, known in (("NCCL_ALGO", _ALGORITHMS), ("NCCL_PROTO", _PROTOCOLS)):
        for _is_inverted, words in parse_selections(environment.get(name, "")):
            for word in sorted(words.difference(known)):
                message = (
                    f"{name} names {word}, and since 2.24 NCCL fails at an unknown word; there are {', '.join(known)}."
                )
                yield Finding("N34", name, message, _OR_DELETE, env("NCCL_ALGO"))
    for what in ("CTAS", "NCHANNELS", "P2P_NCHANNELS"):
        least, most = (number(environment.get(f"NCCL_{side}_{what}", "")) for side in ("MIN", "MAX"))
        if least is not None and most is not None and least > most:
            message = f"NCCL_MIN_{what}={least} is more than NCCL_MAX_{what}={most} allows."
            yield Finding("N35", f"NCCL_MIN_{what}", message, "Delete both.", env("NCCL_MIN_CTAS"))


def _check_error_handling(environment: Environment, _: Facts) -> Iterator[Finding]:
    handling, faults = number(environment.get(_HANDLING, "")), {}
    if is_yes(environment.get(Env.SURVIVE_ON_NCCL, "")):
        # Then the launcher's hang watch is the timeout. The trainer itself sets 0 where that watch kills ranks.
        undoing = [*variables_against_survival(environment), *([_HANDLING] if handling else [])]
        faults = dict.fromkeys(undoing, "torch ends a process that could outlive its group")
        if is_yes(environment.get(USE_NCCL2, "")):
            faults[USE_NCCL2] = "nccl2 refuses DDP_SURVIVE_ON_NCCL=1, and 0 selects the older backend"
    elif handling in {0, 1, 2}:
        lost = "a lost peer becomes an endless hang" if handling == 0 else "the flight recorder's dump is lost"
        faults = {_HANDLING: lost}
    for name, fault in faults.items():
        fix = "Use torch's default; leave it out with DDP_SURVIVE_ON_NCCL=1."
        source = issue("pytorch/pytorch", 121055)
        yield Finding("T02", name, f"{name}={environment[name]}: {fault}.", fix, source, Severity.WARNING)


VALUE_CHECKS: Final[tuple[Check, ...]] = (
    _check_sockets,
    _check_fabric,
    _check_nccl_values,
    _check_error_handling,
)
