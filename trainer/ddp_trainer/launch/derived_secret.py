"""``python -m ddp_trainer secret``: derive the secret of a run from the key of its namespace.

The template of a ClusterTrainingRuntime cannot name a Secret of each job. An init container derives the secret, so the
programs of a job see neither the key nor the secrets of other jobs.
"""

from __future__ import annotations

import argparse
import hmac
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddp_trainer.common.constants import Env, Exit


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
