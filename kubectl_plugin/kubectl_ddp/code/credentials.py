"""Detection of files with credentials, by name and content. Everyone who may read ConfigMaps could read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from ddp_trainer.common.safe_text import holds_token
from kubectl_ddp.errors import UsageError

SHOWN: Final = 5

_NAMES: Final = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "*.ppk", ".htpasswd", ".boto"),
    *(".s3cfg", ".dockercfg", ".dockerconfigjson", "kubeconfig", "*.kubeconfig", ".vault-token", ".databrickscfg"),
    *("application_default_credentials.json", "credentials.tfrc.json", "kaggle.json", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "token.json", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
    *("rclone.conf", ".passwd-s3fs", "*.tfstate", "*.tfstate.backup"),
)
"""Patterns of file names, in any directory."""
_PATHS: Final = (
    *(".aws/credentials", ".kube/config", ".ssh/*", "gcloud/*.db", "gcloud/legacy_credentials/*", ".azure/*.json"),
    *("huggingface/token", ".huggingface/token", ".gnupg/*", "gh/hosts.yml", "wandb/settings"),
)
"""Patterns of paths, below directories of such names."""
_EXAMPLES: Final = ("*.example", "*.sample", "*.template", "*.dist", "*.pub", "known_hosts", "*/known_hosts")

_PRIVATE_KEY: Final = re.compile(
    rb"(?:^|[\"'])[ \t]{0,16}-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----\s{0,4}(?:\\+n)?[A-Za-z0-9+/]{2}",
    re.MULTILINE,
)
_AWS: Final = re.compile(rb"aws_secret_access_key[\"']?[ \t]{0,8}[=:][ \t]{0,8}[\"']?[A-Za-z0-9/+]{30}")
_KUBECONFIG: Final = re.compile(rb"client-key-data[\"']?:[ \t]{0,8}[\"']?[A-Za-z0-9+/=]{8}")
_NPM: Final = re.compile(rb"_(?:authToken|auth|password)[ \t]{0,8}=[ \t]{0,8}(?!\$)[^\s]{4}")
_DOCKER: Final = re.compile(rb"\"(?:auth|identitytoken)\"[ \t]{0,8}:[ \t]{0,8}\"[A-Za-z0-9+/=_.-]{4}")


def holds_credentials(path: str, data: bytes) -> bool:
    """Return whether a file contains credentials, by its path or its content.

    >>> holds_credentials("conf/.env", b""), holds_credentials(".env.example", b""), holds_credentials("a.py", b"x = 1")
    (True, False, False)
    """
    return _is_credential_name(path.lower()) or _is_inside(path.lower(), data)


def reject_credentials(option: str, paths: Sequence[str]) -> None:
    """Raise UsageError if there are any paths of files with credentials."""
    if not paths:
        return
    named = ", ".join(f"'{path}'" for path in paths[:SHOWN])
    more = f" and {len(paths) - SHOWN} more files" if len(paths) > SHOWN else ""
    raise UsageError(
        f"{option}: {named}{more} would travel in a ConfigMap, and look{'s' * (len(paths) == 1)} like credentials.",
        hint=f"Name them in .ddpignore, or allow one with a line there, such as '!{paths[0].rpartition('/')[2]}'.",
    )


def _is_credential_name(path: str) -> bool:
    name = path.rpartition("/")[2]
    if _any(_EXAMPLES, (path, name)):
        return False
    return _any(_NAMES, (name,)) or any(fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in _PATHS)


def _any(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _is_inside(path: str, data: bytes) -> bool:
    if b"PRIVATE KEY" in data and _PRIVATE_KEY.search(data):
        return True
    if (b"aws_secret" in data or b"AWS_SECRET" in data) and _AWS.search(data.lower()):
        return True
    if b"client-key-data" in data and _KUBECONFIG.search(data):
        return True
    if holds_token(data.decode(errors="replace")):
        return True
    if path.endswith(".npmrc"):
        return _NPM.search(data) is not None
    return path.endswith(("docker/config.json", "docker-config.json")) and _DOCKER.search(data) is not None
