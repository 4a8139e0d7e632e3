"""Defaults from the environment variables of Volcengine's platform (``MLP_*``). :func:`apply` sets them for flags that
were not given.

A flag takes precedence over ``PET_*``, which takes precedence over the platform. At the start, one line lists the
values in use, and another the values that a flag overrides.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.launch.protocol.console import LaunchError

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
        raise ValueError("is not a number")
    return int(text)


def _count(text: str) -> str:
    if not (value := _number(text)):
        raise ValueError("is not a number from 1")
    return str(value)


def _port(text: str) -> int:
    if not 1 <= (value := _number(text)) < 1 << 16:
        raise ValueError("is not a port from 1 to 65535")
    return value


VOLCENGINE: Final = (
    Default("nnodes", "MLP_WORKER_NUM", _count),
    Default("node_rank", "MLP_ROLE_INDEX", _number),
    Default("nproc_per_node", "MLP_WORKER_GPU", _count),
    Default("master_addr", "MLP_WORKER_0_HOST", str),
    Default("master_port", "MLP_WORKER_0_PORT", _port),
)


_VARIABLES: Final = {default.flag: default.variable for default in VOLCENGINE}


def apply(arguments: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """Set the flags that were not given from the platform, and return the lines to print about it.

    Raises:
        LaunchError: A variable of the platform is invalid.
    """
    if arguments.platform == "none" or arguments.standalone:
        return []
    found = dict(_values(environ))
    taken = {flag: value for flag, value in found.items() if flag not in arguments.given}
    given = {flag: value for flag, value in found.items() if flag in arguments.given}
    beaten = {flag: value for flag, value in given.items() if str(getattr(arguments, flag)) != str(value)}
    nodes = str(taken.get("nnodes", arguments.nnodes)).strip()
    if nodes in {"1", "1:1"}:
        taken = {flag: value for flag, value in taken.items() if flag not in _OF_SEVERAL_NODES}
    for flag, value in taken.items():
        setattr(arguments, flag, value)
    if "master_addr" in taken and arguments.rdzv_backend != "static" and not arguments.rdzv_endpoint:
        port = "" if arguments.master_port is None else f":{arguments.master_port}"
        arguments.rdzv_endpoint = f"{arguments.master_addr}{port}"
    arguments.given |= taken.keys()
    _check_node_rank(arguments, found, environ)
    used = [f"From Volcengine: {_describe(taken)}."] if taken else []
    return [*used, f"Flags override Volcengine: {_describe(beaten)}."] if beaten else used


def _values(environ: Mapping[str, str]) -> Iterator[tuple[str, str | int]]:
    for default in VOLCENGINE:
        text = environ.get(default.variable, "").strip()
        if not text:
            continue
        try:
            yield default.flag, default.read(text)
        except ValueError as error:
            raise LaunchError(
                f"Volcengine's {default.variable}={text!r} {error}; give --{default.flag.replace('_', '-')}, or "
                "--platform none to leave its variables alone."
            ) from None


def _describe(values: Mapping[str, str | int]) -> str:
    """Return flags with their values and the variables that set them."""
    return ", ".join(f"--{flag.replace('_', '-')} {value} ({_VARIABLES[flag]})" for flag, value in values.items())


def _check_node_rank(arguments: argparse.Namespace, found: Iterable[str], environ: Mapping[str, str]) -> None:
    highest = arguments.nnodes.strip().rpartition(":")[2]
    source = {flag: f"{_VARIABLES[flag]}={environ[_VARIABLES[flag]].strip()}" for flag in found}
    if "node_rank" in source and highest.isdecimal() and arguments.node_rank >= int(highest) > 1:
        raise LaunchError(
            f"{source['node_rank']} makes this node {arguments.node_rank}, but {source.get('nnodes', '--nnodes')} has "
            f"room for 0 to {int(highest) - 1}; give --nnodes and --node-rank, or --platform none."
        )
