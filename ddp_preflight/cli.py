"""Command line of ``ddp-launch preflight``: flags, output and exit code.

:func:`main` runs :mod:`ddp_preflight.runner`, judges the result and prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ddp_preflight import formatter, names
from ddp_preflight.checks.all_checks import run_all_checks
from ddp_preflight.collector import Order
from ddp_preflight.runner import run_preflight
from ddp_preflight.schema import Status
from ddp_trainer.common.constants import Env, Exit, Port
from ddp_trainer.net.addresses import is_local_address, split_endpoint
from ddp_trainer.net.arguments import HELP_HINT, ArgumentParser, node_index, node_range
from ddp_trainer.net.run_secret import BadSecret, RunSecret, read_run_secret

TIMEOUT_SECONDS: Final = 60.0
_STATIC_PORT: Final = 29500
_DESCRIPTION: Final = """Check what distributed training needs, on all nodes together. Start it on every node with
the same --nnodes and --rdzv-endpoint; they meet at the node with --node-rank 0, or at the host of the endpoint."""


class PreflightError(Exception):
    """A flag, an endpoint or a script is invalid; the message is one sentence."""


def main(argv: Sequence[str]) -> int:
    """Run one preflight.

    Returns:
        The exit code: 0 if no check fails, 1 if one fails, 2 for invalid flags.
    """
    environ = dict(os.environ)
    try:
        arguments = argument_parser(environ).parse_args(argv)
        order = order_of(arguments, environ)
        facts = asyncio.run(run_preflight(order, environ))
    except PreflightError as error:
        print(f"ddp-launch preflight: {error}", file=sys.stderr)
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.SIGNAL_BASE + 2
    findings = run_all_checks(facts)
    if arguments.json_file:
        _write(arguments.json_file, formatter.preflight_to_json(facts, findings))
    show = formatter.preflight_to_json if arguments.output == "json" else formatter.table
    if facts.trouble or not arguments.quiet:
        print(show(facts, findings).rstrip("\n"), flush=True)
    return Exit.FAILURE if formatter.verdict(findings) is Status.FAIL else Exit.SUCCESS


def _write(file: str, document: str) -> None:
    try:
        Path(file).write_text(document + "\n")
    except OSError as error:
        print(f"ddp-launch preflight: --json-file {file} cannot be written: {error.strerror}.", file=sys.stderr)


def order_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Order:
    """Return the order that the flags and the environment describe. Raises PreflightError."""
    least, expected = (1, 1) if arguments.standalone else node_range(arguments.nnodes, PreflightError)
    rank: int | None = None if arguments.standalone else arguments.node_rank
    if rank is None and not arguments.standalone:
        rank = node_index(environ)
    endpoint = arguments.rdzv_endpoint
    if arguments.master_addr and not endpoint:
        endpoint = f"[{arguments.master_addr.strip('[]')}]:{arguments.master_port}"
    host, port = ("", 0) if expected == 1 else _endpoint(endpoint, "--rdzv-endpoint")
    meeting_host, meeting_port = _endpoint(arguments.meet, "--meet") if arguments.meet else (host, port)
    if arguments.script and not os.access(arguments.script, os.R_OK):
        raise PreflightError(f"The script {arguments.script!r} cannot be read; name a file, or leave it out.")
    leads_here = expected > 1 and any(map(is_local_address, names.forward(meeting_host).addresses))
    return Order(
        expected=expected,
        least=least,
        timeout=arguments.timeout,
        newcomer=arguments.newcomer,
        secret=_secret(arguments, environ, expected),
        name=environ.get(Env.POD_NAME) or socket.gethostname(),
        node_rank=rank,
        local_world_size=arguments.nproc_per_node,
        endpoint_host=host,
        endpoint_port=port,
        meeting_host=meeting_host,
        meeting_port=meeting_port,
        is_host=rank == (arguments.newcomer or 0) or (rank is None and leads_here),
        leads_here=leads_here,
        script=arguments.script,
    )


def _secret(arguments: argparse.Namespace, environ: Mapping[str, str], expected: int) -> RunSecret | None:
    path = arguments.secret_file or environ.get(Env.SECRET_FILE, "")
    try:
        secret = read_run_secret(path, environ.get(Env.RUN_ID, "")) if path else None
    except BadSecret as error:
        raise PreflightError(f"{error}.") from None
    if secret is None and expected > 1 and not arguments.json_file:  # a launcher that sets --json-file has warned
        warning = (
            f"no secret, so every host that reaches this preflight is believed; set {Env.SECRET_FILE} on all nodes"
        )
        print(f"ddp-launch preflight: {warning}", file=sys.stderr)
    return secret


def _endpoint(text: str, flag: str) -> tuple[str, int]:
    if not text:
        raise PreflightError(
            f"More than one node needs {flag} HOST:PORT, the same on all of them, where HOST is the first node; "
            "for one node say --standalone."
        )
    try:
        host, port = split_endpoint(text, Port.RENDEZVOUS)
    except ValueError:
        port = 0
    if not port:
        raise PreflightError(f"{flag} {text!r} is not HOST:PORT, with a port from 1 to 65535.")
    return host, port


def argument_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the flags, whose defaults come from torchrun's variables."""
    parser = ArgumentParser(PreflightError, hint=HELP_HINT, prog="ddp-launch preflight", description=_DESCRIPTION)

    def add(*names: str, **settings: Any) -> None:
        """Add a flag that can also be written with underscores, as in torchrun."""
        spellings = (*names, f"--{names[-1].removeprefix('--').replace('-', '_')}")
        parser.add_argument(*dict.fromkeys(spellings), **settings)

    add("--nnodes", default=environ.get("PET_NNODES") or "1", metavar="N", help="nodes of the run, or MIN:MAX")
    add("--node-rank", type=_parse_int, metavar="N", help="rank of this node; the nodes meet at node 0")
    add("--nproc-per-node", type=_workers, default=1, metavar="N", help="number of workers of this node")
    endpoint = environ.get("PET_RDZV_ENDPOINT", "")
    add("--rdzv-endpoint", default=endpoint, metavar="HOST:PORT", help="address of node 0, as for a launch")
    add("--master-addr", default="", metavar="HOST", help="address of node 0, as for a static launch")
    add(
        "--master-port",
        type=_parse_int,
        default=_STATIC_PORT,
        metavar="PORT",
        help="port of node 0, with --master-addr",
    )
    add("--meet", default="", metavar="HOST:PORT", help="meet at this address instead, to test the endpoint itself")
    add(
        "--newcomer",
        type=_parse_int,
        metavar="N",
        help="rank of a node that joins others, which train: they meet at it, and only it is judged",
    )
    add("--standalone", action="store_true", help="check this node alone")
    add(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time until all nodes must be there",
    )
    add("-o", "--output", choices=("table", "json"), default="table", help="output format")
    add("--json-file", default="", metavar="FILE", help="also write the JSON document to this file")
    add("--secret-file", default="", metavar="FILE", help=f"file with the run's secret (default ${Env.SECRET_FILE})")
    add("--quiet", action="store_true", help="print nothing if another node prints the same")
    parser.add_argument("script", nargs="?", default="", help="file whose digest is compared")
    return parser


def _parse_int(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def _workers(text: str) -> int:
    """Parse a number of workers; 1 for a name, so that every number of GPUs suffices."""
    return 1 if text in {"auto", "cpu", "gpu"} else _parse_int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return float(text)
