"""Options that select and authenticate against a cluster: kubectl's flags, ``$KUBECONFIG`` and kubeconfig files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubectl_ddp.errors import UsageError

FLAGS: Final[Mapping[str, str]] = {
    "namespace": "-n",
    "context": "--context",
    "cluster": "--cluster",
    "user": "--user",
    "kubeconfig": "--kubeconfig",
    "acting_as": "--as",
    "as_groups": "--as-group",
    "request_timeout": "--request-timeout",
}
"""Field of :class:`Access` → the flag for it."""

NOT_WHERE: Final = frozenset({"request_timeout"})
"""Fields that do not affect which jobs a command finds."""

UNITS: Final[Mapping[str, float]] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Seconds per unit of Go's ``time.ParseDuration``."""

_PART: Final = r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(ns|us|ms|s|m|h)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Values of kubectl's connection flags, as given on the command line."""

    context: str | None = None
    """Context of the kubeconfig (default: the current context)."""
    cluster: str | None = None
    """Cluster of the kubeconfig (default: that of the context)."""
    user: str | None = None
    """User of the kubeconfig (default: that of the context)."""
    kubeconfig: str | None = None
    """Path of the kubeconfig file (default: kubectl's search rule)."""
    namespace: str | None = None
    """Namespace of the job (default: that of the context)."""
    acting_as: str | None = None
    """User to impersonate, as with ``kubectl --as``."""
    as_groups: tuple[str, ...] = ()
    """Groups to impersonate, as with ``kubectl --as-group``."""
    request_timeout: str | None = None
    """Timeout of one request, in kubectl's format (default: the timeout of the HTTP client)."""

    @property
    def request_seconds(self) -> float | None:
        """Timeout of one request in seconds; 0 disables it, ``None`` selects the default. Raises UsageError."""
        return None if self.request_timeout is None else parse_timeout(self.request_timeout)

    @property
    def flags(self) -> str:
        """Flags that select the same jobs in a suggested command, each with a leading space."""
        return "".join(f" {flag} {shlex.quote(value)}" for name, flag, value in self._given() if name not in NOT_WHERE)

    @property
    def kubectl_flags(self) -> tuple[str, ...]:
        """Flags to pass to kubectl, without the namespace."""
        return tuple(f"{flag}={value}" for name, flag, value in self._given() if name != "namespace")

    def _given(self) -> Iterator[tuple[str, str, str]]:
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else (value,) if value else ():
                yield name, flag, item


def parse_timeout(text: str) -> float:
    """Convert kubectl's ``--request-timeout`` to seconds: ``5``, ``90s``, ``1m30s``, ``500ms``. Raises UsageError.

    >>> parse_timeout("1m30s")
    90.0
    """
    if re.fullmatch("[0-9]{1,9}", text):
        return float(text)
    if not re.fullmatch(f"(?:{_PART})+", text):
        raise UsageError(
            f"--request-timeout: '{text}' is not a duration.",
            hint="Write it as '5', '90s', '1m30s' or '500ms'; 0 means no timeout.",
        )
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, text))


def kubeconfig_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the existing kubeconfig files by kubectl's rule: ``$KUBECONFIG``'s list, else ``~/.kube/config``."""
    listed = _kubeconfig_paths(environ)
    candidates = listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]
    return [path for path in candidates if path.is_file()]


def check_kubeconfig(environ: Mapping[str, str] = os.environ) -> None:
    """Check that ``$KUBECONFIG``, if set, names at least one existing path.

    ``/dev/null`` exists, so it passes the check and disables the use of a cluster.

    Raises:
        UsageError: If none of the listed paths exists.
    """
    listed = _kubeconfig_paths(environ)
    if listed and not any(path.exists() for path in listed):
        names, do = " and ".join(f"'{path}'" for path in listed), "does" if len(listed) == 1 else "do"
        raise UsageError(
            f"KUBECONFIG names {names}, which {do} not exist.",
            hint="Correct or unset it, or say --local to work on this machine.",
        )


def _kubeconfig_paths(environ: Mapping[str, str]) -> list[Path]:
    return [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
