"""``python -m ddp_trainer hang``: print the page with stacks of this pod's launcher, see
:mod:`~ddp_trainer.launch.hang.status_socket`.

``kubectl ddp hang`` runs it in a pod by exec. Standard library only.

Exit codes: 0 the page was printed; 1 no launcher answered; 2 usage.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, Exit, File
from ddp_trainer.common.constants import Path as PodPath
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.socket_address import short_address

ANSWER_SECONDS: Final = 10.0
"""Time limit of one request. The stack of a rank that cannot answer, and NCCL's report, take some seconds."""
MOST_BYTES: Final = 1 << 24


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return the folder of the launcher's socket, from the environment of the pod."""
    run_dir = environ.get(Env.RUN_DIR, "")
    default = Path(run_dir) / File.METRICS if run_dir else Path(PodPath.METRICS_DIR)
    return Path(environ.get(Env.METRICS_DIR) or default)


def fetch_hang_status(folder: Path) -> bytes:
    """Return the page with stacks from the launcher that uses this folder.

    Raises:
        OSError: No launcher answers in this folder.
    """
    with short_address(folder / heartbeat_page.LAUNCHER) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(address)
        connection.sendall(heartbeat_page.STACKS)
        page = b""
        while len(page) < MOST_BYTES and (part := connection.recv(1 << 16)):
            page += part
        return page


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the command, which has no flags."""
    return argparse.ArgumentParser(
        prog="python -m ddp_trainer hang", description="Print the state of the ranks of this pod."
    )


def main(argv: Sequence[str]) -> int:
    """Print the page, and return the exit code."""
    argument_parser().parse_args(argv)
    folder = folder_of(os.environ)
    try:
        sys.stdout.buffer.write(fetch_hang_status(folder))
        sys.stdout.buffer.flush()
    except OSError as error:
        why = error.strerror or error
        print(f"hang: no launcher shows its ranks in {folder} ({why}); is ddp-launch running?", file=sys.stderr)
        return Exit.FAILURE
    return Exit.SUCCESS
