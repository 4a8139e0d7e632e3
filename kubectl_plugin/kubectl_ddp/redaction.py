"""Takes secrets out of objects and texts before somebody else reads them.

An environment variable is judged by its name, everything else by its form. Data of Secrets is never read at all.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Final

from kubectl_ddp.backend import Object

HIDDEN: Final = "(redacted)"

_NAME: Final = re.compile(
    r"(?i)token|secret|passw|passphrase|(?<!by)pass(?:$|_)|credential|api_?key|access_?key|private_?key|auth|cookie|session|dsn|signature|licen[cs]e_?key"
)
"""Names whose values are nobody else's business."""

_HARMLESS: Final = re.compile(r"(?i)^TOKENIZERS_PARALLELISM$|^(NUM|MAX|MIN)_.*TOKENS?$|_TOKENS$|^SSH_AUTH_SOCK$")

_FORMS: Final = (
    re.compile(r"\b(?:hf|ghp|gho|ghs|github_pat|glpat|sk|xox[abps])[-_][A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    re.compile(r"(?<=://)[^/\s@\"']+(?=@)"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{12,}"),
    re.compile(r"(?i)(?<=authorization: basic )[A-Za-z0-9+/=]{4,}"),
    re.compile(r"(?i)(?<=[?&]sig=)[^&\s\"'\\]+"),
    re.compile(r"(?i)(?<=-signature=)[^&\s\"'\\]+"),
)
"""What secrets look like: tokens of common services, cloud keys, JWTs, private keys, what URLs are signed with."""

_ASSIGNED: Final = re.compile(
    r"""(?ix) (?P<name>[A-Z0-9_.-]{0,64}(?:token|secret|passw(?:or)?d|api_?key|access_?key|credential)[A-Z0-9_.-]{0,64})
    (?P<between>["']?\s*[=:]\s*|\s+(?=[^-\s]))(?P<quote>\\?["']?)(?P<value>[^\s"'\\,;}\]]{6,})""",
)
"""``--password 1234567``, ``api_key=…``, ``"token": "…"``.

A name has bounds, since a word without a space, as of packed data, would else be searched from each of its letters on
to its end: a minute for fifty thousand.
"""

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name probably holds a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MAX_TOKENS", "NCCL_DEBUG")]
    [True, True, False, False]
    """
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def redact_text(text: str) -> str:
    """A text without what looks like a secret in it.

    >>> redact_text("login --password hunter22 at https://me:pw@example.com")
    'login --password (redacted) at https://(redacted)@example.com'
    """
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    return _ASSIGNED.sub(_hide_assigned, text)


def _hide_assigned(match: re.Match[str]) -> str:
    if (
        match["value"] in {HIDDEN, "null", "None"}
        or _HARMLESS.search(match["name"])
        or not is_secret_name(match["name"])
    ):
        return match[0]
    is_word = not match["between"].strip() and not match["name"].startswith("-")
    return match[0] if is_word else f"{match['name']}{match['between']}{match['quote']}{HIDDEN}"


def redact(item: Any) -> Any:
    """An object without secrets: values of variables with such names, data of a Secret, texts that look like one."""
    if isinstance(item, list):
        return [redact(each) for each in item]
    if isinstance(item, str):
        return _redact_string(item)
    if not isinstance(item, dict):
        return item
    if item.get("kind") == "Secret":
        return _without_data(item)
    if isinstance(item.get("name"), str) and isinstance(item.get("value"), str) and is_secret_name(item["name"]):
        return {**item, "value": HIDDEN}
    return {key: _of_key(key, value) for key, value in item.items() if key not in {"managedFields", _LAST_APPLIED}}


def _redact_string(text: str) -> str:
    """A text; of one that is an object in JSON, as annotations are, its names are judged as those of any other."""
    if text.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(redact(json.loads(text)))
    return redact_text(text)


def _of_key(key: str, value: Any) -> Any:
    if isinstance(value, str) and is_secret_name(key) and not key.endswith(("Name", "name")) and key not in _REFERENCES:
        return HIDDEN
    return redact(value)


_REFERENCES: Final = frozenset({"secret", "secretRef", "secretKeyRef"})
"""Keys that name a Secret, and hold nothing of it."""


def _without_data(secret: Object) -> Object:
    return {key: value for key, value in secret.items() if key not in {"data", "stringData", "managedFields"}}
