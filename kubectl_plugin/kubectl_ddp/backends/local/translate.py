"""Translation of cluster names in arguments and variables to this machine.

This machine has neither DNS nor mounts for a job. The name of a Service or pod becomes its address, and a mount path
becomes the directory behind it. Only whole names and whole path components match: ``digits-store:29400`` is the
Service, ``my-digits-store`` is not; ``/checkpoints/a`` is below the mount, ``/checkpoints2`` and ``/data/checkpoints``
are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Translation = Callable[[str], str]


def translation(addresses: Mapping[str, str], directories: Mapping[str, str], namespace: str) -> Translation:
    """Return a function that translates one argument or value.

    Args:
        addresses: Name of a Service or pod → its address.
        directories: Mount path → directory on this machine.
        namespace: Namespace of the job; ``<service>.<namespace>.svc`` matches the Service too.
    """
    by_name = _names(addresses, namespace)
    by_path = _paths(directories)
    return lambda text: by_path(by_name(text))


def _names(addresses: Mapping[str, str], namespace: str) -> Translation:
    if not addresses:
        return str
    name = rf"({_any_of(addresses)})(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?"
    # In a URL, a path may follow the name; elsewhere a slash means that the word is a path.
    pattern = re.compile(rf"(?<=//){name}(?![\w\-]|\.\w)|(?<![\w.\-/]){name}(?![\w\-/]|\.\w)")
    return lambda text: pattern.sub(lambda found: addresses[found[1] or found[2]], text)


def _paths(directories: Mapping[str, str]) -> Translation:
    if not directories:
        return str
    pattern = re.compile(rf"(?<![\w.\-/~])({_any_of(directories)})(?![\w.\-])")
    return lambda text: pattern.sub(lambda found: directories[found[1]], text)


def _any_of(words: Mapping[str, str]) -> str:
    """Return a regex of alternatives, longest first, so that ``/data/a`` matches before ``/data``."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
