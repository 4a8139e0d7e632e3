"""NCCL's own word on who is missing: its RAS subsystem (2.24 and later), asked over its client socket of this host.

RAS is of NCCL, and so is its port, which only processes of this host (of this pod's network) reach. It knows of all
ranks of the job, so one answer of one pod is enough.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

ADDRESS_VARIABLE: Final = "NCCL_RAS_ADDR"
HOST: Final = "localhost"
PORT: Final = 28028
PROTOCOL: Final = 2
"""Of the client; RAS serves others than its own, too."""
COLLECT_SECONDS: Final = 2
"""RAS asks every process of the job, and waits so long for those that do not answer."""
ANSWER_SECONDS: Final = 3.0
MOST_CHARACTERS: Final = 16_000


def report(environment: Mapping[str, str]) -> str:
    """What RAS says of the job in its own words; empty where there is none."""
    try:
        with socket.create_connection(address_of(environment), timeout=0.5) as connection:
            connection.settimeout(ANSWER_SECONDS)
            with connection.makefile("rwb") as talk:
                talk.write(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
                talk.flush()
                if not talk.readline(200).startswith(b"SERVER PROTOCOL "):
                    return ""  # somebody else listens there
                talk.write(f"TIMEOUT {COLLECT_SECONDS}\n".encode())
                talk.flush()
                if talk.readline(200) != b"OK\n":
                    return ""
                talk.write(b"VERBOSE STATUS\n")
                talk.flush()
                return talk.read(MOST_CHARACTERS).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """Where RAS listens, by what NCCL itself is told. Raises ValueError for what is no address.

    >>> address_of({}), address_of({"NCCL_RAS_ADDR": "[::1]:4000"})
    (('localhost', 28028), ('::1', 4000))
    """
    host, colon, port = environment.get(ADDRESS_VARIABLE, "").rpartition(":")
    return (host.strip("[]") or HOST, int(port)) if colon else (HOST, PORT)
