"""Cluster words in arguments and variables, made true on this machine.

There is no DNS and there are no mounts here, so a Service's or a pod's name becomes its address, and a mount path the
directory behind it. Only whole names and whole path components count: ``digits-store:29400`` is the Service,
``my-digits-store`` is not; ``/checkpoints/a`` is below the mount, ``/checkpoints2`` and ``/data/checkpoints`` are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Translation = Callable[[str], str]


def translation(addresses: Mapping[str, str], directories: Mapping[str, str], namespace: str) -> Translation:
    """A function that translates one argument or value.

    Args:
        addresses: name of a Service or pod → its address.
        directories: mount path → directory of this machine.
        namespace: the job's; ``<service>.<namespace>.svc`` names the Service too.
    """
    by_name = _names(addresses, namespace)
    by_path = _paths(directories)
    return lambda text: by_path(by_name(text))


def _names(addresses: Mapping[str, str], namespace: str) -> Translation:
    if not addresses:
        return str
    name = rf"({_any_of(addresses)})(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?"
    # In a URL a path may follow; elsewhere a slash says that this is a path, not a name.
    pattern = re.compile(rf"(?<=//){name}(?![\w\-]|\.\w)|(?<![\w.\-/]){name}(?![\w\-/]|\.\w)")
    return lambda text: pattern.sub(lambda found: addresses[found[1] or found[2]], text)


def _paths(directories: Mapping[str, str]) -> Translation:
    if not directories:
        return str
    pattern = re.compile(rf"(?<![\w.\-/~])({_any_of(directories)})(?![\w.\-])")
    return lambda text: pattern.sub(lambda found: directories[found[1]], text)


def _any_of(words: Mapping[str, str]) -> str:
    """Alternatives, the longest first: ``/data/a`` must win over ``/data``."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
