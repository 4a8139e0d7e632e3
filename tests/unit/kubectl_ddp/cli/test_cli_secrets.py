"""A secret in clear goes into no object: it is refused, with the way to keep it, and never repeated."""

from __future__ import annotations

import pytest

from kubectl_ddp.spec.rules import in_clear
from kubectl_ddp.values.program import Command
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job

pytestmark = pytest.mark.usefixtures("workdir")

FORMS = (
    "hf_" + "a1B2" * 8,
    "AKIA" + "ABCD1234EFGH5678",
    "ghp_" + "x9Y8" * 9,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----",
    "https://me:hunter22@example.com/data",
)
PLANTED = "correct-horse-battery"
PLACES = (
    *(("--env", f"HARMLESS={form}") for form in FORMS),
    *(("--env", f"{name}={PLANTED}") for name in ("HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "aws_secret_access_key")),
    *(("--", form) for form in FORMS),
    ("--", "--password", PLANTED),
    ("--", f"--hf-token={PLANTED}"),
    ("--set", f"env.HUB_TOKEN={PLANTED}"),
)


def secret_of(words: tuple[str, ...]) -> str:
    return PLANTED if any(PLANTED in word for word in words) else words[-1].removeprefix("HARMLESS=")


@pytest.mark.parametrize("words", PLACES, ids=lambda words: " ".join(words)[:30])
@pytest.mark.parametrize("command", ["render", "submit --dry-run=client"])
def test_a_secret_in_clear_is_refused(command: str, words: tuple[str, ...], cli: CommandLine) -> None:
    output = cli(*command.split(), "train.py", "--image", "train:1", "--engine", "job", *words, code=2)
    assert output.out == ""
    assert secret_of(words) not in output.err
    assert "looks like a secret" in output.err
    assert "--secret-env" in output.err


@pytest.mark.parametrize("words", [
    ("--pad-token", "<pad>", "--eos-token=</s>"), ("--max-tokens", "4096", "--token-budget=100000"),
    ("--tokenizer", "gpt2-large", "--special-tokens", "a,b"),
    ("--data", "https://example.com/data", "--repo", "ssh://git@example.com/a"),
    ("--password-file", "/secrets/db/password"), ("--hf-token", "/secrets/hub/token"),
])  # fmt: skip
def test_what_has_only_the_name_of_one_is_let_through(words: tuple[str, ...]) -> None:
    assert list(in_clear(a_job(args=words))) == []
    assert list(in_clear(a_job(program=Command(("prepare", *words)), args=()))) == []


def test_variables_with_numbers_files_and_switches_are_let_through() -> None:
    harmless = {"MAX_TOKENS": "2048", "HF_TOKEN": "/hub/token", "USE_TOKEN": "true", "TOKENIZERS_PARALLELISM": "x"}
    assert list(in_clear(a_job(env=harmless))) == []
