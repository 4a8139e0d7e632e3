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
    async_error_handling_overrides,
    env,
    is_enabled,
    issue,
    number,
    parse_selections,
)

TORCH_CUDA: Final = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
NVRX: Final = "https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html#known-issues"
EFA: Final = "https://github.com/awslabs/awsome-distributed-ai (efa-cheatsheet)"
_HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LARGEST_IB_TIMEOUT: Final = 31
_MOST_SOCKETS: Final = 64


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


def _check_nccl_values(environment: Environment, _: Facts) -> Iterator[Finding]:
    protocols = environment.get("NCCL_PROTO", "")
    if forces_ll128(protocols):
        message = f"NCCL_PROTO={protocols} forces LL128, which corrupts data on platforms that do not support it."
        fix = "Delete it: where LL128 is supported NCCL uses it."
        yield Finding("N33", "NCCL_PROTO", message, fix, env("NCCL_PROTO"))
    for what in ("CTAS", "NCHANNELS", "P2P_NCHANNELS"):
        least, most = (number(environment.get(f"NCCL_{side}_{what}", "")) for side in ("MIN", "MAX"))
        if least is not None and most is not None and least > most:
            message = f"NCCL_MIN_{what}={least} is more than NCCL_MAX_{what}={most} allows."
            yield Finding("N35", f"NCCL_MIN_{what}", message, "Delete both.", env("NCCL_MIN_CTAS"))


def _check_error_handling(environment: Environment, _: Facts) -> Iterator[Finding]:
    handling, faults = number(environment.get(_HANDLING, "")), {}
    if is_enabled(environment.get(Env.SURVIVE_ON_NCCL, "")):
        # Then the launcher's hang watch is the timeout. The trainer itself sets 0 where that watch kills ranks.
        undoing = [*async_error_handling_overrides(environment), *([_HANDLING] if handling else [])]
        faults = dict.fromkeys(undoing, "torch ends a process that could outlive its group")
        if is_enabled(environment.get(USE_NCCL2, "")):
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
