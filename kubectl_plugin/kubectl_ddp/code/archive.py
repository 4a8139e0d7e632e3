"""Code shipped with a job: a script, or a directory as a reproducible archive, without files that hold credentials.

The same files result in the same digest, which names a job's code.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ddp_trainer.common.safe_text import holds_token
from kubectl_ddp.code import ignore
from kubectl_ddp.errors import UsageError, suggest_file
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.text_table import pluralize

LISTED_PATHS: Final = 5

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
    named = ", ".join(f"'{path}'" for path in paths[:LISTED_PATHS])
    more = f" and {len(paths) - LISTED_PATHS} more files" if len(paths) > LISTED_PATHS else ""
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


ARCHIVE: Final = "code.tar.gz"
"""Entry of the ConfigMap for a directory; it is unpacked before the pod's program starts."""
PART_BYTES: Final = 900 << 10
"""Largest part of the code in one ConfigMap, in bytes. A ConfigMap holds 1 MiB, including its metadata."""
PART_LETTERS: Final = PART_BYTES // 3 * 4
"""The same in base64."""

HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class Code:
    """Content of the ConfigMaps."""

    file: str
    """Name of the script's file, or :data:`ARCHIVE`."""
    text: str
    """The script's text, or the archive in base64."""
    files: int = 0
    """Number of files in it; 0 if unknown."""

    @property
    def is_archive(self) -> bool:
        """True if it contains a directory."""
        return self.file == ARCHIVE

    @property
    def hash(self) -> str:
        """Prefix of the SHA-256; part of the ConfigMaps' names, since their content never changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_LENGTH]


@dataclass(frozen=True, slots=True)
class CodePart:
    """Content of one ConfigMap."""

    name: str
    """Name of the ConfigMap."""
    entry: str
    """Name of its only entry. The entries in their order make the archive."""
    text: str


def code_parts(job: str, code: Code) -> list[CodePart]:
    """Return the ConfigMaps of a job's code. A script is one part."""
    length = len(code.text) or 1
    size = PART_LETTERS if code.is_archive else length
    return [
        CodePart(
            f"{job}-code-{code.hash}" + (f"-{number}" if number else ""),
            code.file + (f".{number}" if number else ""),
            code.text[start : start + size],
        )
        for number, start in enumerate(range(0, length, size))
    ]


def read_back(config_maps: Sequence[Object]) -> Code | None:
    """Return the code in the ConfigMaps of a submitted job, or None if there are none."""
    entries: dict[str, Any] = {}
    for config_map in config_maps:
        entries |= {**(config_map.get("data") or {}), **(config_map.get("binaryData") or {})}
    return Code(min(entries), "".join(entries[name] for name in sorted(entries))) if entries else None


LARGEST_BYTES: Final = 8 * 2**20
"""Maximum size of the archive in bytes. It is cut into ConfigMaps, and every pod gets it from the API server."""

MAX_UNPACKED_BYTES: Final = 64 * 2**20
"""Maximum total size of the files in bytes. A larger directory is rejected without packing."""

LISTED_FILES: Final = 3
"""Number of largest files in the error message."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    """Path relative to the directory, with slashes."""
    source: Path
    size: int
    link: str | None = None
    """Target of a symbolic link; None for a file."""
    is_allowed: bool = False
    """True if a ``.ddpignore`` includes the file even if it contains credentials."""


def pack(directory: str) -> Code:
    """Pack the code in a directory. Raises UsageError if it is unreadable, too large, or contains credentials."""
    root = Path(directory)
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "does not exist"
        raise UsageError(f"--code: '{directory}' {what}.", hint="Name the directory that holds the code.")
    try:
        files = sorted(_files(root), key=lambda file: file.path)
        if not files:
            raise UsageError(f"--code: '{directory}' sends no files.", hint=".gitignore and .ddpignore exclude files.")
        return _archive(files, "--code", f"--code: {pluralize(len(files), 'file')} in '{directory}'")
    except OSError as error:
        raise UsageError(f"--code: '{error.filename or directory}' cannot be read: {error.strerror}.") from error


def pack_script(script: Path, modules: Sequence[Path]) -> Code:
    """Pack a script and Python files below its directory. Raises UsageError if they are too large or contain
    credentials, and OSError.
    """
    allowed = [*_patterns(script.parent, "")]
    files = [
        _File(path, source, source.stat().st_size, is_allowed=ignore.allows(allowed, path))
        for source in sorted({script, *modules})
        for path in [source.relative_to(script.parent).as_posix()]
    ]
    return _archive(files, "The script", f"'{script}' and the modules beside it")


def _archive(files: Sequence[_File], option: str, what: str) -> Code:
    if sum(file.size for file in files) > MAX_UNPACKED_BYTES:
        raise _too_large(what, files, None)
    reject_credentials(option, [file.path for file in files if _holds_credentials(file)])
    data = gzip.compress(_build_archive(files), compresslevel=9, mtime=0)
    if len(data) > LARGEST_BYTES:
        raise _too_large(what, files, len(data))
    return Code(ARCHIVE, base64.b64encode(data).decode(), files=len(files))


def script_inside(script: str, directory: str) -> str:
    """Return the path of a script relative to the directory of the code. Raises UsageError if it is not inside.

    The script may be given relative to the working directory, or relative to the directory of the code.
    """
    root = _real(Path(directory))
    for candidate in (_real(Path(script)), _real(root / script)):
        if candidate.is_file() and candidate.is_relative_to(root):
            return str(PurePosixPath(candidate.relative_to(root)))
    raise UsageError(
        f"There is no script '{script}' in the code '{directory}'.",
        hint=suggest_file(script) or "Name a file in it, or another --code.",
    )


def _files(root: Path, base: str = "", above: Sequence[ignore.Pattern] = ()) -> Iterator[_File]:
    """Yield every included file below ``root / base``."""
    patterns = [*(above or ignore.read("\n".join(ignore.ALWAYS))), *_patterns(root / base, base)]
    with os.scandir(root / base) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{base}{entry.name}"
        is_directory = entry.is_dir(follow_symlinks=False)
        if ignore.is_ignored(patterns, path, is_directory=is_directory):
            continue
        if is_directory:
            yield from _files(root, f"{path}/", patterns)
        elif entry.is_symlink():
            yield _link(root, path)
        elif entry.is_file():
            yield _File(path, Path(entry.path), entry.stat().st_size, is_allowed=ignore.allows(patterns, path))


def _patterns(directory: Path, base: str) -> Iterator[ignore.Pattern]:
    for name in ignore.FILES:
        file = directory / name
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            yield from ignore.read(text, base, is_ours=name == ignore.IGNORE_FILE)


def _holds_credentials(file: _File) -> bool:
    return file.link is None and not file.is_allowed and holds_credentials(file.path, file.source.read_bytes())


def _link(root: Path, path: str) -> _File:
    """Return a symbolic link as a link, as git does, even in a loop. Raises UsageError if it leads outside."""
    source = root / path
    target = source.readlink()
    if target.is_absolute() or not _real(source).is_relative_to(_real(root)):
        raise UsageError(
            f"--code: the link '{path}' leads to '{target}', outside of what is sent.",
            hint="Exclude it in .ddpignore, or replace it with a copy.",
        )
    return _File(path, source, 0, link=str(PurePosixPath(target)))


def _real(path: Path) -> Path:
    """Resolve all links. Unlike ``Path.resolve``, ``realpath`` accepts loops."""
    return Path(os.path.realpath(path))


def _build_archive(files: Sequence[_File]) -> bytes:
    """Build a tar archive without owners and times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(file.path)
            if file.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(entry)
                continue
            data = file.source.read_bytes()
            entry.size = len(data)
            entry.mode = 0o755 if os.access(file.source, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _too_large(what: str, files: Sequence[_File], packed: int | None) -> UsageError:
    largest = sorted(files, key=lambda file: -file.size)[:LISTED_FILES]
    named = ", ".join(f"{file.path} ({_size(file.size)})" for file in largest)
    total = _size(sum(file.size for file in files))
    is_packed = f", {_size(packed)} when packed" if packed is not None else ""
    return UsageError(
        f"{what} have {total}{is_packed}, and at most {_size(LARGEST_BYTES)} packed can travel with a job; the largest "
        f"are {named}.",
        hint="Exclude files in .ddpignore, mount the code from a volume (--code-claim CLAIM:PATH), or build it into an "
        "image (submit --build).",
    )


def _size(size: int) -> str:
    """Format a size with its unit.

    >>> _size(700), _size(1536), _size(3 * 2**20)
    ('700 B', '1.5 KiB', '3.0 MiB')
    """
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
