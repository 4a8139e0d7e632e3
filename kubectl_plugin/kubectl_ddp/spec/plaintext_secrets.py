"""Detection of plain-text secrets in a job, by the name or form of a variable, and among its arguments.

Everyone who may read the job, its pods or its annotations could read such a secret. The warnings never contain the
value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import CREDENTIALS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.values.program import Command

VARIABLE: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)S?(_ID)?$", re.IGNORECASE
)
"""Pattern of variable names that denote a secret."""
FLAG: Final = re.compile(
    r"(?i)^--?([a-z0-9]+[-_])*(password|passwd|passphrase|secret|api[-_]?key|access[-_]?key|private[-_]?key|"
    r"(hf|hub|auth|access|api|bearer|github|gitlab|wandb|refresh)[-_]?token)$"
)
"""Pattern of flags that take a secret. A tokenizer's ``--pad-token`` does not match."""
FORM: Final = re.compile(CREDENTIALS)
HARMLESS: Final = re.compile(r"(?i)\d{1,9}|true|false|none|null|/[\w./-]*|")
"""Pattern of values that are never secrets, whatever the name: MAX_TOKENS is a number, and HF_TOKEN_PATH a file."""
AS_VARIABLE: Final = "--secret-env NAME=SECRET:KEY"


def in_clear(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning for each secret in plain text."""
    for name, value in spec.env.items():
        if FORM.search(value) or (VARIABLE.search(name) and not HARMLESS.fullmatch(value)):
            yield warning(
                f"The value of {name} looks like a secret, and everyone who may read the job can read it.",
                f"Keep it in a Secret: --secret-env {name}=SECRET:KEY.",
            )
    words = [*(spec.program.words if isinstance(spec.program, Command) else ()), *spec.args]
    for where in dict.fromkeys(_secrets_in_args(words)):
        yield warning(
            f"{where} looks like a secret, and everyone who may read the job can read it.",
            f"Keep it in a Secret, give it to the pods with {AS_VARIABLE}, and read the variable.",
        )


def _secrets_in_args(words: list[str]) -> Iterator[str]:
    for number, (before, word) in enumerate(itertools.pairwise(["", *words]), start=1):
        flag, equals, value = word.partition("=")
        if equals and FLAG.match(flag) and not HARMLESS.fullmatch(value):
            yield f"The value of {flag}"
        elif FLAG.match(before) and not word.startswith("-") and not HARMLESS.fullmatch(word):
            yield f"The value of {before}"
        elif FORM.search(word):
            yield f"Word {number} of the program"
