"""Redaction of secrets and escaping of terminal controls in text of a job.

A job writes its own logs, errors, arguments and environment, so they are not trusted. Code that shows, stores or sends
them calls :func:`redact_text` first. Code that writes them to a terminal calls
:func:`escape_control_chars`. Launcher and plugin share this package. Standard library only.

:func:`escape_control_chars` is the entry point for text, :func:`escape_log_line` for lines of a log.

:func:`is_secret_name` tells by a name whether its value is a secret.

:func:`redact_text` and :func:`clean_text` are the entry points. One pass finds the words that a secret may follow, and
tokens that are recognized by their form. Each value is read once, so the time is linear in the length of the text
(``bench redaction``). No repetition contains another repetition, and every repetition before a value is bounded.
Patterns are compiled on first use, since most commands need none.
"""

from __future__ import annotations

import functools
import re
from typing import Final

_BIDIRECTIONAL: Final = ("\u061c", "\u200e-\u200f", "\u202a-\u202e", "\u2066-\u206f")
_INVISIBLE: Final = ("\u00ad", "\u200b", "\u2028-\u2029", "\u2060-\u2064", "\ufeff", "\ufff9-\ufffb")
_HALVES: Final = "\ud800-\udfff"
"""Surrogates: halves of characters, which no encoding can write."""

_CONTROL: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{''.join((*_BIDIRECTIONAL, *_INVISIBLE))}{_HALVES}]")
"""Controls to escape: C0 without tab and newline, DEL, C1, direction controls, invisible separators. The zero-width
joiner and non-joiner stay, since emoji and several scripts need them."""

_SURROGATE: Final = re.compile(f"[{_HALVES}]")
_ABOVE_ASCII: Final = "".join(
    map(chr, (*range(0x7F, 0x100), *range(0x600, 0x700), *range(0x2000, 0x2100), 0xFEFF, *range(0xFFF9, 0xFFFC)))
)

_COLOR: Final = re.compile(r"(\x1b\[[0-9;]{0,32}m)")

_ESCAPED: Final = {
    **{code: f"\\x{code:02x}" for code in range(0x20) if chr(code) not in "\t\n"},
    ord("\r"): "\\r",
    **{ord(character): f"\\u{ord(character):04x}" for character in _CONTROL.findall(_ABOVE_ASCII)},
}
"""Escapes by code point. Above ASCII they have the form that strings of JSON and YAML share, so that a document
stays valid."""


def escape_control_chars(text: str) -> str:
    r"""Return the text with every terminal control written as an escape; newlines and tabs stay.

    >>> escape_control_chars("a\x1b[2Jb\u202e")
    'a\\x1b[2Jb\\u202e'
    """
    if not _CONTROL.search(text):
        return text
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.translate(_ESCAPED))


def escape_log_line(line: str) -> str:
    r"""Return a line of a log that is safe for a terminal: colours stay, other controls are escaped.

    A carriage return starts the line again, as progress bars do: only the text after the last one is shown.

    A carriage return starts the line again, as progress bars do: only the text after the last one is shown.

    >>> escape_log_line("\r10%\r\x1b[32m20%\x1b[0m\x1b]52;c;eA==\x07\r")
    '\x1b[32m20%\x1b[0m\\x1b]52;c;eA==\\x07\x1b[0m'
    """
    if not _CONTROL.search(line):
        return line
    last = line.rstrip("\r").rpartition("\r")[2]
    pieces = _COLOR.split(last)
    shown = "".join(piece if at % 2 else escape_control_chars(piece) for at, piece in enumerate(pieces))
    return f"{shown}\x1b[0m" if len(pieces) > 1 and not shown.endswith(("\x1b[0m", "\x1b[m")) else shown


HIDDEN: Final = "(redacted)"
"""Text that replaces a secret."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET: Final = _word_set(
    "password passwd passphrase passcode pwd secret secrets credential credentials apikey accesskey secretkey "
    "privatekey accountkey authorization cookie cookies"
)
"""Words that make a name secret at any position."""

_SECRET_AT_THE_END: Final = frozenset(["auth", "pass", "dsn", "token", "pgpass", "sas"])

_KEY_OF: Final = _word_set(
    "access account admin aes anthropic api app application auth aws azure client cohere comet consumer crypto "
    "customer datadog dd deploy encryption fernet gcp gemini github gitlab google hf hmac host huggingface jwt "
    "license licence master mistral mlflow neptune openai private root rsa secret sentry service session shared "
    "signing slack ssh ssl storage stripe subscription tls user wandb webhook x"
)
"""Words that make a ``key`` after them a secret. Other keys are keys of a table."""

_NO_SECRET_KEY: Final = _word_set(
    "cache column config dict foreign group hash index lookup metric monitor partition primary public row sort"
)

_NOT_ITSELF: Final = _word_set(
    "arn class count dir directory enabled env error errors exception file files keyring length limit mode name names "
    "path policy provider ref required size type url uri version volume warning"
)
"""Final words of names whose value describes a secret, and is none."""

_OF_LANGUAGE: Final = _word_set(
    "acc accuracy audio avg bos budget cls completion count embedding embeddings end eos first generated id ids idx "
    "image index input last len length limit loss mask max mean min new next num output pad per prompt rate sep size "
    "special start stop temperature text throughput time total type unk video vision vocab"
)
"""Words that mark ``token`` as a token of a language model, not of an account."""

_MOVES: Final = _word_set("backward by first forward last multi one second single two")
"""Words that mark ``pass`` as a pass over data."""


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, flag, header or field of this name is a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "--db-pass", "AccountKey", "max_tokens", "sort_key")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _NOT_ITSELF:
        return False
    if not _SECRET.isdisjoint(words) or words[-1].endswith("password"):
        return name not in {"PWD", "OLDPWD"} and not ("pwd" in words and words[-1] == "old")
    if "token" in words:
        return _OF_LANGUAGE.isdisjoint(words)
    if words[-1] in _SECRET_AT_THE_END:
        return _MOVES.isdisjoint(words)
    return "key" in words[-2:] and _is_secret_key(name, words)


def _is_secret_key(name: str, words: list[str]) -> bool:
    if not _NO_SECRET_KEY.isdisjoint(words):
        return False
    return not _KEY_OF.isdisjoint(words) or (name.isupper() and name.endswith("_KEY"))


LEAST_FINDINGS: Final = 3_000
CHARACTERS_OF_A_FINDING: Final = 60
"""Limit of findings in a text: :data:`LEAST_FINDINGS`, plus one per this many characters. The text after the limit
is left out."""
TOO_MANY: Final = "(redacted: the rest of this text, in which too much looks like secrets)"

_LONGEST_NAME: Final = 64
"""Most characters of a name before the word that makes it secret."""
_MOST_VERDICTS: Final = 10_000
_LONGEST_HARMLESS: Final = 200
"""Longest value, in characters, that may be harmless."""

# Searched in lower case. Each branch begins with a plain letter, so the search skips positions without one.
_QUOTE: Final = r"\\{0,3}[\"'`]?"
# A new line of a log begins with its time and its rank.
_SPACE: Final = r"\s{1,40}+(?:[0-9t:.-]{15,32}z )?(?:\[rank[0-9]{1,6}\] ?)?\s{0,40}+"
_FOUND: Final = (
    r"(?:token|s(?:ecret|ig|as)|p(?:ass|wd)|a(?:uth|pikey)|c(?:redential|ookie)|key|dsn|-()(?<![\w-]-)-?[a-z])"
    r"[\w.-]{0,32}+"
    # ``name=``, ``"name":``, and the two fields ``name:`` and ``value:`` of Kubernetes
    rf"(?:({_QUOTE}[ \t]{{0,4}}+(?:=(?!=)>?|:(?!//|:)=?)[ \t]{{0,4}}+"
    rf"|{_QUOTE},?{_SPACE}{_QUOTE}value{_QUOTE}[ \t]{{0,4}}+:[ \t]{{0,4}}+)"
    # a flag and a space, or the border of two items of a list in JSON, YAML or Python
    rf"|(?(1)({_QUOTE},?{_SPACE}(?:-[ \t]{{1,4}}+)?(?!-))|(?!)))"
)
_FLAG, _ASSIGNMENT = 1, 2
"""Groups of the pattern ``_FOUND``."""

# "sk-" also ends "disk-" and "task-", so no letter may precede it, except the end of a colour code.
_BORDER: Final = r"(?:(?<![\w-].)|(?<=\x1b\[[0-9]m.)|(?<=\x1b\[[0-9]{2}m.)|(?<=\x1b\[[0-9];[0-9]{2}m.))"
_ACCOUNT_TOKEN: Final = (
    r"g(?:h[pousr]_\w{20,255}+|ithub_pat_\w{20,255}+|l(?:pat|ptt|dt|soat)-[\w-]{16,255}+)"
    r"|h(?:f_[A-Za-z0-9]{20,255}+|vs\.[\w-]{20,255}+|ooks\.slack\.com/services/[\w/]{10,255}+)"
    r"|x(?:ox[abeoprs]-[\w-]{10,255}+|app-[\w-]{16,255}+)"
    r"|A(?:[KS]IA[0-9A-Z]{16}+|Iza[\w-]{30,255}+)"
    rf"|s(?:(?=k[-_]){_BORDER}k[-_][\w-]{{20,255}}+)"
    r"|ya29\.[\w-]{20,2048}+|n(?:pm_\w{30,255}+|vapi-[\w-]{30,255}+)|pypi-[\w-]{30,512}+|tskey-[\w-]{16,255}+"
    r"|d(?:op_v1_\w{32,255}+|ckr_[po]at_[\w-]{16,255}+|dprunsecret[0-9a-f]{32,255}+)"
    r"|SG\.[\w-]{16,64}+\.[\w-]{16,128}+"
)
"""Tokens of accounts, which have a form of their own."""
_TOKEN: Final = (
    rf"{_ACCOUNT_TOKEN}|e(?:(?=yJ){_BORDER}yJ[\w-]{{10,1024}}+\.[\w-]{{5,8192}}+(?:\.[\w-]{{0,4096}}+)?)"
    r"|bearer[ \t]{1,4}+[\w.~+/=-]{12,8192}+|B(?:earer|EARER)[ \t]{1,4}+[\w.~+/=-]{12,8192}+"
)
_NAME_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_NAME: Final = re.compile(r"[\w.-]+")

_VALUE: Final = (
    r"(\"|')(?:[^\"'\\\r\n]|\\.|(?!\1)[\"'])*+"
    r"|(\\{1,3}[\"'])[^\"'\\\r\n]*+"
    r"|()(?:(?i:Bearer|Basic|Token|Digest)[ \t]+)?"
    r"(?:[^\s\"'`,;&)\]}\\]|[,;&)\]}\\](?![\s\"'`,;&)\]}\\]|[\w.-]{1,40}\\?[\"']?[=:]|\Z))++"
)
"""Pattern of a value: up to the closing quote, else up to a space. Punctuation also ends it before a space, a quote,
more punctuation, the next name or the end of the text."""
_REST_OF_LINE: Final = r"(\\{0,3}[\"']?)[^\"'\\\r\n]++"
"""Pattern of a header's value, which may contain spaces."""
_IS_HEADER: Final = re.compile(r"(?i)authorization|cookie")

_HARMLESS: Final = (
    r"(?:and|cannot|has|is|looks|must|needs|or|takes|was)"
    r"|(?i:null|none|nil|true|false|yes|no|str|int|bytes|bool|optional\b.*|redacted|unset|missing|<[a-z_ ]*>|\*+)?"
    r"|\(redacted\)?|\$[({][A-Za-z_]\w*[)}]?"
    r"|(?:self|cls|args|cfg|config|os|opts|options|kwargs|settings|params)\.[\w.]+[()\[\]]*"
    r"|[A-Za-z_][\w.]*(?:\(.*|\[.*)|[a-z_]*token[a-z_]*"
)
"""Values that reveal nothing: a word of a sentence after a flag, null, a type, a reference to a variable, code."""
_NUMBER: Final = r"-?[0-9]{1,7}(?:\.[0-9]*)?(?:e-?[0-9]+)?|\[[0-9, ]*\]?"

_PEM: Final = (
    r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_USER_OF_URL: Final = r"://[^/\s\"'<>@]{1,512}+@(?:[^/\s\"'<>@]{1,128}+@)?"
_NETRC: Final = r"login\s{1,8}\S{1,128}+\s{1,8}password\s{1,8}\S{1,512}+"
_RANDOM: Final = r"(?=[A-Za-z_/+-]{0,64}+[0-9])(?=[0-9_/+-]{0,64}+[A-Za-z])[\w+/=-]{12,512}+"
"""Pattern of a value with letters and digits: a secret, not a word of a sentence."""
_BESIDE_VARIABLE: Final = (
    rf"\b([A-Z][A-Z0-9]{{0,32}}+(?:_[A-Z0-9]{{1,32}}+){{0,6}}+(?<=KEY|ORD|KEN|RET)[ \t]{{1,4}}+){_RANDOM}"
)
"""Pattern of a variable with its value after a space."""
_COMMAND: Final = (
    r"\b((?:sshpass|mysql(?:dump|admin)?|mariadb|redis-cli|(?:docker|podman|registry|oras|crane|skopeo) login)\b"
    r"(?:[ \t]{1,4}+(?!-[pa])[^\s|;&]{1,255}+){0,24}+[ \t]{1,4}+-[pa][ \t]{0,4}+)[^\s|;&]{1,512}+"
)
"""Pattern of a command with a password behind a flag of one letter."""
_FOLDED: Final = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    **dict.fromkeys((0x00AD, 0x180E, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF)),
}
"""Full-width characters → the ASCII characters that they look like; invisible characters → None."""
_FOLDABLE: Final = f"[{''.join(map(chr, _FOLDED))}]"
_WITH_PASSWORD: Final = frozenset(["-u", "--user", "--proxy-user"])
"""Flags of curl whose value is ``user:password``."""


def redact_text(text: str) -> str:
    """Return the text with its secrets hidden.

    >>> redact_text("login --password hunter22 at https://me:pw@example.com")
    'login --password (redacted) at https://(redacted)@example.com'
    """
    if not text.isascii() and re.search(_FOLDABLE, text):
        plain = text.translate(_FOLDED)
        if (hidden := _redact(plain)) != plain:
            return hidden
    return _redact(text)


def holds_token(text: str) -> bool:
    """Return whether a text has a token of an account.

    >>> holds_token("ghp_" + "a1B2" * 9), holds_token("--password hunter22")
    (True, False)
    """
    return re.search(_ACCOUNT_TOKEN, text) is not None


def _redact(text: str) -> str:
    if "PRIVATE KEY" in text:
        text = re.sub(_PEM, HIDDEN, text)
    if "://" in text:
        text = re.sub(_USER_OF_URL, f"://{HIDDEN}@", text)
    if "login" in text:
        text = re.sub(_NETRC, f"login {HIDDEN} password {HIDDEN}", text)
    text = re.sub(_TOKEN, HIDDEN, text)
    if re.search(r"(?:KEY|ORD|KEN|RET)[ \t]", text):
        text = re.sub(_BESIDE_VARIABLE, rf"\g<1>{HIDDEN}", text)
    if " -p" in text or " -a" in text:
        text = re.sub(_COMMAND, rf"\g<1>{HIDDEN}", text)
    return _Scan(text).redact()


def clean_text(text: str) -> str:
    r"""Return a text without secrets and without terminal controls.

    >>> clean_text("--password hunter2 \x1b]0;title\x07")
    '--password (redacted) \\x1b]0;title\\x07'
    """
    return escape_control_chars(redact_text(text))


class _Scan:
    """Single pass over one text that hides its secrets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lower = text.replace("\u0130", "I").lower()  # U+0130 is two characters in lower case
        self._pieces: list[str] = []
        self._kept_to = 0
        self._decisions: dict[tuple[bool, str], bool] = {}

    def redact(self) -> str:
        text, lower, search, position = self._text, self._lower, re.compile(_FOUND).search, 0
        findings_left = LEAST_FINDINGS + len(text) // CHARACTERS_OF_A_FINDING
        while found := search(lower, position):
            position = self._hide_value(found) if self._names_a_secret(found) else found.end()
            findings_left -= 1
            if not findings_left:
                return "".join([*self._pieces, text[self._kept_to : position], TOO_MANY])
        return "".join([*self._pieces, text[self._kept_to :]]) if self._pieces else text

    def _hide(self, start: int, end: int) -> None:
        self._pieces += (self._text[self._kept_to : start], HIDDEN)
        self._kept_to = end

    def _names_a_secret(self, found: re.Match[str]) -> bool:
        """Return whether the complete name marks a secret. The name may begin before the matched word."""
        start, end = found.span()
        before = self._text[max(0, start - _LONGEST_NAME) : start]
        border = len(before.rstrip(_NAME_CHARACTERS))
        name = before[border:] + self._text[start:end]
        if name[:3].lower() == "key" and before[border - 1 : border] == " ":
            name = "_".join([*before[: border - 1].split()[-1:], name])  # "API key: "
        key = (before[border - 1 : border] in {"?", "&"}, name)
        is_secret = self._decisions.get(key)
        if is_secret is None:
            if len(self._decisions) > _MOST_VERDICTS:
                self._decisions.clear()
            is_secret = self._decisions[key] = _is_secret(*key)
        return is_secret

    def _hide_value(self, found: re.Match[str]) -> int:
        """Hide the value after a name, and return the position at which the search continues."""
        start, name = found.end(), found[0]
        is_header = found[_ASSIGNMENT] is not None and _IS_HEADER.match(name) is not None
        value = re.compile(_REST_OF_LINE if is_header else _VALUE).match(self._text, start)
        if value is None:
            return start
        quote = next((group for group in value.groups() if group is not None), "")
        if _is_safe_value(name, self._text[start + len(quote) : value.end()], is_quoted=bool(quote)):
            return start
        self._hide(start + len(quote), value.end())
        return value.end()


def _is_secret(is_parameter: bool, found: str) -> bool:
    """Return whether ``found``, a name with its separator from the value, marks a secret."""
    name = _leading_name(found)
    if name.lower().endswith(("sig", "signature")):
        return found.endswith("=") and (is_parameter or name.lower().startswith(("x-amz-", "x-goog-")))
    return is_secret_name(name) or name in _WITH_PASSWORD


def _leading_name(text: str) -> str:
    named = _NAME.match(text)
    return named[0] if named else ""


def _is_safe_value(name: str, value: str, *, is_quoted: bool) -> bool:
    if len(value) > _LONGEST_HARMLESS:
        return False
    if _leading_name(name) in _WITH_PASSWORD:
        return ":" not in value
    if "oken" in name[:6] and re.fullmatch(_NUMBER, value):
        return True
    found = re.fullmatch(_HARMLESS, value)
    return found is not None and not (is_quoted and "(" in value)
