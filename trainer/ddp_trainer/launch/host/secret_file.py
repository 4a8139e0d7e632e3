"""Secret of a run: loading it for the launcher and the store, and deriving it from the key of a namespace.

``python -m ddp_trainer secret --key FILE --secret-file FILE`` derives and writes the secret of the run ``$DDP_RUN_ID``,
in an init container of each pod.
"""

from __future__ import annotations

import argparse
import hmac
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.launch.protocol.console import LaunchError, log_line
from ddp_trainer.net.run_secret import HOW_TO_MAKE, BadSecret, RunSecret, read_run_secret


def optional_secret(path: str, run_id: str) -> RunSecret | None:
    """Return the secret in a file; None if ``path`` is empty. Raises LaunchError for an unusable file."""
    try:
        secret = read_run_secret(path, run_id) if path else None
    except BadSecret as error:
        raise LaunchError(f"{error}.") from None
    if secret and secret.is_published:
        log_line(
            f"The secret in {path} is the published placeholder of the examples, so it protects nothing; {HOW_TO_MAKE}."
        )
    return secret


def required_secret(path: str, run_id: str) -> RunSecret:
    """Return the secret in a file. Raises LaunchError if the file is unusable or ``path`` is empty."""
    secret = optional_secret(path, run_id)
    if secret is None:
        raise LaunchError(
            f"This run has no secret. Set {Env.SECRET_FILE}, or --rdzv-conf secret_file=FILE, to a file that all nodes "
            f"have: your private key ({Env.SECRET_FILE}=~/.ssh/id_ed25519), or {HOW_TO_MAKE}."
        )
    return secret


def derived_secret(key: bytes, run_id: str) -> str:
    """Return the content of the file of a run's secret, as ``RUN_ID:SECRET``."""
    return f"{run_id}:{hmac.digest(key, run_id.encode(), 'sha256').hex()}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser("ddp_trainer secret", description=f"Derive the secret of the run ${Env.RUN_ID}.")
    made.add_argument("--key", type=Path, required=True, metavar="FILE", help="file with the key of the namespace")
    made.add_argument("--secret-file", type=Path, required=True, metavar="FILE", help="file to write")
    return made


def main(argv: Sequence[str]) -> int:
    """Write the secret of the run, and return an exit code."""
    arguments = parser().parse_args([*argv])
    file = arguments.secret_file
    try:
        text = derived_secret(arguments.key.read_bytes(), os.environ[Env.RUN_ID])
        file.unlink(missing_ok=True)  # of an attempt before
        file.write_text(text)
        file.chmod(0o440)
    except (KeyError, OSError) as error:
        print(f"ddp_trainer secret: the secret of the run cannot be derived: {error}", file=sys.stderr)
        return Exit.USAGE
    return Exit.SUCCESS
