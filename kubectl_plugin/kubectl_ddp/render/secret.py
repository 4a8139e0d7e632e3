"""Secret of a run: 256 random bits with which its launchers and its store authenticate to one another.

:func:`new_secret` creates the bits. :func:`view` defines the object and its volume for the templates. The launcher
reads the mounted file, see :data:`ddp_trainer.common.constants.SECRET_KEY`.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from ddp_trainer.common.constants import SECRET_KEY

SECRET_BYTES: Final = 32

PLACEHOLDER: Final = "0" * 2 * SECRET_BYTES
"""Value in published manifests, for readers to replace."""

HASH_LENGTH: Final = 10
"""Hexadecimal digits of the run id's hash in the Secret's name. Run ids may contain characters that are invalid in
names.
"""

OWNER_READS: Final = 0o400
"""Mode of the file. The kubelet adds read permission for the pod's ``fsGroup``, which makes it 0440."""


def new_secret() -> str:
    """Return 256 random bits as 64 hexadecimal digits, after words by which logs and files are searched for it."""
    return f"ddprunsecret{secrets.token_hex(SECRET_BYTES)}"


def secret_name(job: str, run_id: str) -> str:
    """Return the name of a run's Secret. Two runs of one job have different names."""
    return f"{job}-run-{hashlib.sha256(run_id.encode()).hexdigest()[:HASH_LENGTH]}"


def view(job: str, run_id: str, secret: str) -> dict[str, Any]:
    """Return the templates' part of a view.

    Args:
        job: Name of the job.
        run_id: Id of the run.
        secret: Secret of the run, from :func:`new_secret`.
    """
    name = secret_name(job, run_id)
    return {
        "secret_name": name,
        "secret_data": {SECRET_KEY: f"{run_id}:{secret}"},
        "secret_volume": {"name": SECRET_KEY, "secret": {"secretName": name, "defaultMode": OWNER_READS}},
    }
