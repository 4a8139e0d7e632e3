"""Defaults from the environment variables of Volcengine's platform (``MLP_*``). :func:`apply` sets them for flags that
were not given.

A flag takes precedence over ``PET_*``, which takes precedence over the platform. At the start, one line lists the
values in use, and another the values that a flag overrides.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.launch.protocol.errors import LaunchError

NAMES: Final = ("auto", "none")

_OF_SEVERAL_NODES: Final = {"node_rank", "master_addr", "master_port"}
"""Flags that a launch on one node does not use: its group forms, and re-forms, without an address."""


@dataclass(frozen=True, slots=True)
class Default:
    """Variable that sets the default of one flag."""

    flag: str
    variable: str
    read: Callable[[str], str | int]
    """Function from the variable's text to the flag's value. Raises ValueError."""


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError("is no number")
    return int(text)


def _count(text: str) -> str:
    if not (value := _number(text)):
        raise ValueError("is no number from 1")
    return str(value)


def _port(text: str) -> int:
    if not 1 <= (value := _number(text)) < 1 << 16:
        raise ValueError("is no port from 1 to 65535")
    return value


VOLCENGINE: Final = (
    Default("nnodes", "MLP_WORKER_NUM", _count),
    Default("node_rank", "MLP_ROLE_INDEX", _number),
    Default("nproc_per_node", "MLP_WORKER_GPU", _count),
    Default("master_addr", "MLP_WORKER_0_HOST", str),
    Default("master_port", "MLP_WORKER_0_PORT", _port),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Value of one flag, from a variable of the platform."""

    flag: str
    value: str | int
    source: str

    def __str__(self) -> str:
        """Return the flag with its value and its source."""
        return f"--{self.flag.replace('_', '-')} {self.value} ({self.source})"


def apply(arguments: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """Set the flags that were not given from the platform, and return the lines to print about it.

    Raises:
        LaunchError: A variable of the platform is invalid.
    """
    if arguments.platform == "none" or arguments.standalone:
        return []
    found = list(_values(environ))
    taken = {value.flag: value for value in found if value.flag not in arguments.told}
    given = [value for value in found if value.flag in arguments.told]
    beaten = [value for value in given if str(getattr(arguments, value.flag)) != str(value.value)]
    nodes = str(taken["nnodes"].value) if "nnodes" in taken else arguments.nnodes.strip()
    if nodes in {"1", "1:1"}:
        taken = {flag: value for flag, value in taken.items() if flag not in _OF_SEVERAL_NODES}
    for flag, value in taken.items():
        setattr(arguments, flag, value.value)
    if "master_addr" in taken and arguments.rdzv_backend != "static" and not arguments.rdzv_endpoint:
        port = "" if arguments.master_port is None else f":{arguments.master_port}"
        arguments.rdzv_endpoint = f"{arguments.master_addr}{port}"
    arguments.told |= taken.keys()
    _check_node_rank(arguments, found, environ)
    return [*_source_messages(taken.values(), beaten)]


def _values(environ: Mapping[str, str]) -> Iterable[Value]:
    for default in VOLCENGINE:
        text = environ.get(default.variable, "").strip()
        if not text:
            continue
        try:
            yield Value(flag=default.flag, value=default.read(text), source=default.variable)
        except ValueError as error:
            raise LaunchError(
                f"Volcengine's {default.variable}={text!r} {error}; give --{default.flag.replace('_', '-')}, or "
                "--platform none to leave its variables alone."
            ) from None


def _source_messages(taken: Iterable[Value], beaten: Iterable[Value]) -> Iterable[str]:
    if used := ", ".join(map(str, taken)):
        yield f"From Volcengine: {used}."
    if unused := ", ".join(map(str, beaten)):
        yield f"Volcengine says {unused}; what was given counts instead."


def _check_node_rank(arguments: argparse.Namespace, found: Iterable[Value], environ: Mapping[str, str]) -> None:
    highest = arguments.nnodes.strip().rpartition(":")[2]
    source = {value.flag: f"{value.source}={environ[value.source].strip()}" for value in found}
    if "node_rank" in source and highest.isdecimal() and arguments.node_rank >= int(highest) > 1:
        raise LaunchError(
            f"{source['node_rank']} makes this node {arguments.node_rank}, but {source.get('nnodes', '--nnodes')} has "
            f"room for 0 to {int(highest) - 1}; give --nnodes and --node-rank, or --platform none."
        )
