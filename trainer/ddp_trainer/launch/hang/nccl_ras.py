"""Report of NCCL's RAS subsystem (2.24 and later) about missing ranks. :func:`report` reads it from the RAS client
socket of this host. NCCL opens this port, which only processes of this host (of this pod's network) can reach. RAS
covers all ranks of the job, so the report of one pod is enough.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

ADDRESS_VARIABLE: Final = "NCCL_RAS_ADDR"
HOST: Final = "localhost"
PORT: Final = 28028
PROTOCOL: Final = 2
"""Protocol version of this client; RAS also serves clients of other versions."""
COLLECT_SECONDS: Final = 2
"""Seconds that RAS waits for the processes of the job to answer."""
ANSWER_SECONDS: Final = 3.0
MOST_CHARACTERS: Final = 16_000


def report(environment: Mapping[str, str]) -> str:
    """Return RAS's status of the job as text, at most ``MOST_CHARACTERS`` bytes of it; empty if RAS does not answer."""
    try:
        with socket.create_connection(address_of(environment), timeout=0.5) as connection:
            connection.settimeout(ANSWER_SECONDS)
            with connection.makefile("rb") as answers:
                connection.sendall(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
                if not answers.readline(200).startswith(b"SERVER PROTOCOL "):
                    return ""  # another program uses this port
                connection.sendall(f"TIMEOUT {COLLECT_SECONDS}\n".encode())
                if answers.readline(200) != b"OK\n":
                    return ""
                connection.sendall(b"VERBOSE STATUS\n")
                return answers.read(MOST_CHARACTERS).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of RAS, from the variable that NCCL reads.

    >>> address_of({}), address_of({"NCCL_RAS_ADDR": "[::1]:4000"})
    (('localhost', 28028), ('::1', 4000))

    Raises:
        ValueError: If the variable holds no address.
    """
    host, colon, port = environment.get(ADDRESS_VARIABLE, "").rpartition(":")
    return (host.strip("[]") or HOST, int(port)) if colon else (HOST, PORT)
