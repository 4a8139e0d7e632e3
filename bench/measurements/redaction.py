"""Time of the redactor for 1 MB of hostile text, and for 1 MB of an ordinary log.

Each text repeats one form that a pattern could go back over, or stops just before a match. The processor time of this
thread is judged, so that other programs do not count. The ratio of 4 MB to 1 MB shows that the time is linear.
"""

from __future__ import annotations

import time
from typing import Final

from bench.harness import Options, Report
from ddp_trainer.common.safe_text import clean_text, redact_text

SUMMARY = "how long 1 MB of hostile log text takes in the redactor"
BYTES: Final = 1_000_000
BAR_SECONDS: Final = 0.1
BAR_RATIO: Final = 6.0
HOSTILE: Final = (
    *("token", "toke", "pwd=a\n", "key: ", "a=b ", "token=", "token ", "s", "t", "sig=", "&sig=a", "apikey", "key=f("),
    *("eyJ", "eyJ.", "sk-", "ghp_", "://", "://a:", "://a@", "Bearer ", "--token ", "--db-pass x ", "-u a:", "login "),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "password='", 'password="\\', "password=,a", "token\\\\\\", "{"),
    *(
        "token\t\t\t\t",
        "authorization: a\n",
        '"name": "A_KEY", "value": "x" ',
        "login a password b ",
        "\x1b]0;",
        "\u202e",
        "\u200b",
        "\uff10 ",
        "AB_KEY ",
        "A1_TOKEN a",
        "A_",
        "sshpass -p ",
        "mysql a -p",
        "docker login x -a",
        "api key: ",
    ),
)
LOG: Final = "2026-01-02T03:04:06Z [rank0] step 10: loss 0.5, 1,024 tokens/s, 12 checks passed, checkpoint saved\n"


def measure(options: Options) -> Report:
    """Time every text."""
    rounds = 3 if options.quick else 10
    report = Report()
    redact_text("password=a")  # patterns are compiled when they are first needed
    slowest = max(HOSTILE, key=lambda form: _seconds(form, BYTES, rounds))
    hostile = _seconds(slowest, BYTES, rounds)
    options.progress(f"the slowest repeats {slowest!r}")
    report.figure("redaction_hostile_seconds", hostile)
    report.figure("redaction_log_seconds", _seconds(LOG, BYTES, rounds))
    ratio = max(_seconds(form, 4 * BYTES, 1) / _seconds(form, BYTES, rounds) for form in HOSTILE)
    report.figure("redaction_four_to_one_ratio", ratio)
    report.at_most("processor seconds for the slowest 1 MB", hostile, BAR_SECONDS)
    report.at_most("time of 4 MB over time of 1 MB, of the form where it grows most", ratio, BAR_RATIO)
    return report


def _seconds(form: str, size: int, rounds: int) -> float:
    """The shortest of some rounds."""
    text = (form * (size // len(form) + 1))[:size]
    return min(_once(text) for _ in range(rounds))


def _once(text: str) -> float:
    begun = time.thread_time()
    clean_text(text)
    return time.thread_time() - begun
