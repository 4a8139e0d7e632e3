"""Lint rules for values that are invalid, contradict each other, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import names, sources
from ddp_trainer.common.lint.model import Environment, Facts, Found, Rule, Severity, where
from ddp_trainer.common.lint.values import is_one, is_zero, number, split_list

_SWITCHES: Final = (
    *("NCCL_P2P_DISABLE", "NCCL_P2P_DIRECT_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_PXN_DISABLE"),
    *("NCCL_NVB_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_IB_MERGE_NICS", "NCCL_RAS_ENABLE", "NCCL_RUNTIME_CONNECT"),
    *("NCCL_DMABUF_ENABLE", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_SET_THREAD_NAME", "NCCL_IB_SPLIT_DATA_ON_QPS"),
    *("NCCL_NET_GDR_READ", "NCCL_IGNORE_NET_MISMATCH"),
)
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(_SWITCHES, (0, 1)),
    "NCCL_SOCKET_NTHREADS": (1, 16),
    "NCCL_NSOCKS_PERTHREAD": (1, 64),
    "NCCL_SOCKET_RETRY_CNT": (1, 2**31 - 1),
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": (1, 2**31 - 1),
    "NCCL_CROSS_NIC": (0, 2),
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_SL": (0, 15),
    "NCCL_IB_TC": (0, 255),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_P2P_PXN_LEVEL": (0, 2),
    "NCCL_NVLS_ENABLE": (0, 2),
    "NCCL_MNNVL_ENABLE": (0, 2),
    "NCCL_CGA_CLUSTER_SIZE": (0, 8),
    "NCCL_MIN_CTAS": (1, 64),
    "NCCL_MAX_CTAS": (1, 64),
    "NCCL_BUFFSIZE": (1, 2**40),
}
_DEFAULTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_PXN_DISABLE"), 0),
    "NCCL_IGNORE_CPU_AFFINITY": 0,
    **dict.fromkeys(("NCCL_IB_MERGE_NICS", "NCCL_RAS_ENABLE", "NCCL_RUNTIME_CONNECT", "NCCL_IGNORE_NET_MISMATCH"), 1),
    **dict.fromkeys(("NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_CROSS_NIC", "NCCL_IB_PCI_RELAXED_ORDERING"), 2),
    "NCCL_IB_QPS_PER_CONNECTION": 1,
    "NCCL_IB_RETRY_CNT": 7,
    "NCCL_IB_TIMEOUT": 20,
    "NCCL_BUFFSIZE": 4194304,
    "NCCL_SOCKET_RETRY_CNT": 34,
    "NCCL_IB_GID_INDEX": -1,
    "NCCL_P2P_PXN_LEVEL": 2,
}
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_IB_ADDR_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_CHECK_MODE": ("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"),
    "NCCL_NTHREADS": ("64", "128", "256", "512"),
    "NCCL_NET_MERGE_POLICY": ("ALL", "RAIL"),
}
_LEVELS: Final = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")
_LEVEL_WORDS: Final = ("LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_ALGORITHMS: Final = frozenset({"ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"})
_PROTOCOLS: Final = frozenset({"ll", "ll128", "simple"})
_NEEDED: Final = frozenset({"NCCL_ALGO", "NCCL_PROTO"})
_HAVE_RULES: Final = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"),
        *("NCCL_MNNVL_ENABLE", "NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR"),
        "NCCL_IGNORE_NET_MISMATCH",
    }
)
"""Debugging variables that another rule covers in more detail, or that have a use in operation."""


def is_default(environment: Environment, name: str) -> bool:
    """Return whether a variable has NCCL's default value."""
    return name in _DEFAULTS and number(environment.get(name, "")) == _DEFAULTS[name]


def _is_set(environment: Environment, name: str) -> bool:
    return is_one(environment.get(name, ""))


def _forces_ll128(value: str) -> bool:
    return any("ll128" in tokens and not inverted for inverted, tokens in _parse_selections(value))


def _parse_selections(value: str) -> Iterator[tuple[bool, set[str]]]:
    """Split ``ring;allreduce:^tree`` into (inverted, algorithms) for each function."""
    for part in split_list(value, ";"):
        chosen = part.rpartition(":")[2].strip()
        yield chosen.startswith("^"), {word.lower() for word in split_list(chosen.removeprefix("^"))}


@Rule(
    id="N03",
    looks_for="variables of the section Debugging of NCCL's guide, left on",
    message="{name}={value} is a debugging switch, which NCCL's guide wants to be kept in no script.",
    fix="Delete it, unless it works around something that is still there.",
    source=sources.ENV,
)
def _debugging(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in sorted(environment.keys() & names.NCCL_DEBUGGING - _HAVE_RULES):
        if not is_default(environment, name):
            yield Found(name, environment[name])


@Rule(
    id="N04",
    looks_for="`NCCL_P2P_DISABLE=1`, `NCCL_SHM_DISABLE=1`",
    message="{name}={value} switches off {detail} between the GPUs of a node, and all goes another, slower way.",
    source=sources.env("NCCL_P2P_DISABLE"),
)
def _transport_off(environment: Environment, _: Facts) -> Iterator[Found]:
    for name, what in (("NCCL_P2P_DISABLE", "NVLink and PCI peer access"), ("NCCL_SHM_DISABLE", "shared memory")):
        if number(environment.get(name, "")) == 1:
            yield Found(name, "1", what)


@Rule(
    id="N05",
    looks_for="`NCCL_ALGO`, `NCCL_PROTO` chosen by hand (TCPX aside)",
    message="{name}={value} overrides NCCL's choice at every size, and fails where it is not available.",
    source=sources.env("NCCL_ALGO"),
)
def _fixed_algorithm(environment: Environment, _: Facts) -> Iterator[Found]:
    # The recipe for TCPX on GCP sets exactly these variables.
    if not any(name.startswith("NCCL_GPUDIRECTTCPX_") for name in environment):
        for name in sorted(environment.keys() & _NEEDED):
            if name == "NCCL_ALGO" or not _forces_ll128(environment[name]):
                yield Found(name, environment[name])


_LEVEL_AS_NUMBER: Final = Rule(
    when=where(lambda value: number(value) is not None, *_LEVELS),
    id="N06",
    looks_for="numbers in `NCCL_P2P_LEVEL`, `NCCL_NET_GDR_LEVEL`",
    message="{name}={value} is a number, whose meaning has changed between versions; above 4 all mean SYS.",
    fix="Use LOC, NVL, PIX, PXB, PHB or SYS.",
    source=sources.env("NCCL_P2P_LEVEL"),
)


_NVLS_DISABLED: Final = Rule(
    when=where(is_zero, "NCCL_NVLS_ENABLE", given=lambda environment, _: not _is_set(environment, Env.SURVIVE_ON_NCCL)),
    id="N13",
    looks_for="`NCCL_NVLS_ENABLE=0` without `DDP_SURVIVE_ON_NCCL=1`, for which NVRx requires it",
    message="{name}={value} gives up NVLink SHARP, to work around NCCL before 2.18.5 or a broken fabric manager.",
    fix="Delete it, and mend the fabric manager where it does not start. Keep it where processes outlive NCCL groups.",
    source=f"{sources.issue('NVIDIA/nccl', 1672)} ({sources.NVRX})",
)


_MNNVL_WITHOUT_CUMEM: Final = Rule(
    when=where(is_zero, "NCCL_CUMEM_ENABLE", given=lambda environment, _: _is_set(environment, "NCCL_MNNVL_ENABLE")),
    id="N14",
    severity=Severity.ERROR,
    looks_for="`NCCL_CUMEM_ENABLE=0` with `NCCL_MNNVL_ENABLE=1`",
    message="NCCL_MNNVL_ENABLE=1 needs what {name}={value} switches off, and the start fails.",
    fix="Delete {name}.",
    source=sources.env("NCCL_MNNVL_ENABLE"),
)


_MNNVL_FORCED: Final = Rule(
    when=where(is_one, "NCCL_MNNVL_ENABLE"),
    id="N15",
    looks_for="`NCCL_MNNVL_ENABLE=1`",
    message="{name}={value} makes the start fail (Cuda failure 800) on every node without an IMEX channel.",
    fix="Leave it at 2, which finds out, or claim a ComputeDomain for the pods.",
    source=sources.issue("NVIDIA/nccl", 1925),
)


@Rule(
    id="N30",
    severity=Severity.INFO,
    looks_for="values that are the default",
    message="{name}={value} is what NCCL does anyway.",
    source=sources.ENV,
)
def _default(environment: Environment, _: Facts) -> Iterator[Found]:
    for name in sorted(environment.keys() & _DEFAULTS.keys()):
        if is_default(environment, name):
            yield Found(name, environment[name])


@Rule(
    id="N31",
    severity=Severity.ERROR,
    looks_for="numbers out of range, and words where a number belongs",
    message="{name}={value} is out of range: it may be {detail}.",
    fix="Correct it, or delete it.",
    source=sources.ENV,
)
def _out_of_range(environment: Environment, _: Facts) -> Iterator[Found]:
    for name, (least, most) in _RANGES.items():
        value = environment.get(name, "")
        told = number(value)
        if value.strip() and (told is None or not least <= told <= most):
            upper = str(most) if most < 2**31 - 1 else "anything above"
            yield Found(name, value, f"{least} to {upper}" if told is None or most < 2**31 - 1 else f"at least {least}")


@Rule(
    id="N32",
    severity=Severity.ERROR,
    looks_for="words that the variable does not have",
    message="{name}={value} is none of {detail}.",
    fix="Correct it, or delete it.",
    source=sources.ENV,
)
def _no_choice(environment: Environment, _: Facts) -> Iterator[Found]:
    for name, choices in _CHOICES.items():
        value = environment.get(name, "").strip()
        if value and value.upper() not in choices:
            yield Found(name, value, ", ".join(choices))
    for name in _LEVELS:
        value = environment.get(name, "").strip()
        if value and number(value) is None and value.upper() not in _LEVEL_WORDS:
            yield Found(name, value, "LOC, NVL, PIX, PXB, PHB, SYS")


_LL128_FORCED: Final = Rule(
    when=where(_forces_ll128, "NCCL_PROTO"),
    id="N33",
    severity=Severity.ERROR,
    looks_for="`LL128` forced by `NCCL_PROTO`",
    message="{name}={value} forces LL128, which corrupts data on platforms that do not support it.",
    fix="Delete it: where LL128 is supported NCCL uses it.",
    source=sources.env("NCCL_PROTO"),
)


@Rule(
    id="N34",
    severity=Severity.ERROR,
    looks_for="unknown words in `NCCL_ALGO`, `NCCL_PROTO`",
    message="{name} names {value}, and since 2.24 NCCL fails at an unknown word; there are {detail}.",
    fix="Correct it, or delete the variable.",
    source=sources.env("NCCL_ALGO"),
)
def _unknown_token(environment: Environment, _facts: Facts) -> Iterator[Found]:
    for name, known in (("NCCL_ALGO", _ALGORITHMS), ("NCCL_PROTO", _PROTOCOLS)):
        for _, tokens in _parse_selections(environment.get(name, "")):
            for token in sorted(tokens - known):
                yield Found(name, token, ", ".join(sorted(known)))


@Rule(
    id="N35",
    severity=Severity.ERROR,
    looks_for="a least number of CTAs or channels above the most",
    message="{name}={value} is more than {detail} allows.",
    fix="Delete both.",
    source=sources.env("NCCL_MIN_CTAS"),
)
def _min_exceeds_max(environment: Environment, _: Facts) -> Iterator[Found]:
    for what in ("CTAS", "NCHANNELS", "P2P_NCHANNELS"):
        least, most = (number(environment.get(f"NCCL_{side}_{what}", "")) for side in ("MIN", "MAX"))
        if least is not None and most is not None and least > most:
            yield Found(f"NCCL_MIN_{what}", str(least), f"NCCL_MAX_{what}={most}")


_CUMEM_DISABLED: Final = Rule(
    when=where(
        is_zero, "NCCL_CUMEM_ENABLE", given=lambda environment, _: not _is_set(environment, "NCCL_MNNVL_ENABLE")
    ),
    id="N36",
    severity=Severity.INFO,
    looks_for="`NCCL_CUMEM_ENABLE=0`",
    message="{name}={value} gives up registered buffers and multi-node NVLink; some vendors' old recipes have it.",
    fix="Delete it, and keep it only if the vendor requires it with the current NCCL.",
    source=sources.env("NCCL_CUMEM_ENABLE"),
)


_LEVEL_OF_DISABLED_P2P: Final = Rule(
    when=where(lambda _: True, "NCCL_P2P_LEVEL", given=lambda environment, _: _is_set(environment, "NCCL_P2P_DISABLE")),
    id="N37",
    looks_for="`NCCL_P2P_LEVEL` beside `NCCL_P2P_DISABLE=1`",
    message="{name}={value} has no effect: NCCL_P2P_DISABLE=1 has switched off what it is about.",
    fix="Delete one of them.",
    source=sources.env("NCCL_P2P_DISABLE"),
)
