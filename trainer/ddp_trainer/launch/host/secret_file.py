"""Loading of the run's secret for the launcher and the store.

The entry points are :func:`optional_secret` and :func:`required_secret`.
"""

from __future__ import annotations

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.errors import LaunchError
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
