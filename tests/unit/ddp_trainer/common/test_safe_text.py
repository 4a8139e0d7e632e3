"""Redaction of texts: secrets are hidden in any surroundings, and harmless words stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.safe_text import HIDDEN, TOO_MANY, clean_text, redact_text
from tests.support.secret_corpus import HARMLESS, SECRETS, WORD

AROUND = ("{}", "[rank0] failed: {}", "{}\nstep 3: loss 0.5", "a\n{}\n", 'error "x": {}')


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("around", AROUND)
def test_a_secret_leaves_a_text_whatever_stands_around_it(secret: str, around: str) -> None:
    shown = redact_text(around.format(secret))
    assert WORD not in shown
    assert WORD.upper()[:16] not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"train.py --db-pass {WORD} --epochs 3", f"train.py --db-pass {HIDDEN} --epochs 3"),
        (f"postgres://me:{WORD}@db.example.com/x", f"postgres://{HIDDEN}@db.example.com/x"),
        (f"AccountKey={WORD};EndpointSuffix=a", f"AccountKey={HIDDEN};EndpointSuffix=a"),
        (f'{{"password": "{WORD}", "step": 3}}', f'{{"password": "{HIDDEN}", "step": 3}}'),
        (f"args:\n- --db-pass\n- {WORD}\n- --epochs", f"args:\n- --db-pass\n- {HIDDEN}\n- --epochs"),
    ],
)
def test_only_the_value_is_hidden(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_a_text_that_is_hidden_stays_the_same_when_it_is_hidden_again() -> None:
    for secret in SECRETS.values():
        once = clean_text(secret)
        assert clean_text(once) == once


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_a_secret_is_found_between_the_times_and_ranks_of_a_log(secret: str) -> None:
    log = "\n".join(f"2026-01-02T03:04:06.123456789Z [rank0] {line}" for line in secret.split("\n"))
    assert WORD not in redact_text(log)


def test_secrets_stay_hidden_beside_letters_that_grow_in_lower_case() -> None:
    assert redact_text(f"\u0130\u0130 password={WORD} \u0130") == f"\u0130\u0130 password={HIDDEN} \u0130"


def test_what_comes_after_too_many_findings_is_left_out() -> None:
    shown = redact_text(f"pwd=a{WORD} " * 20_000)
    assert WORD not in shown
    assert shown.endswith(TOO_MANY)


@given(st.text(alphabet="tokensecrpawdky=: \n-\"'\\,/@u&", max_size=300), st.sampled_from(list(SECRETS.values())))
def test_a_secret_on_a_line_of_its_own_is_found_after_any_text(before: str, secret: str) -> None:
    if before.count('"') + before.count("'") + before.count("`") == 0:
        assert WORD not in redact_text(f"{before}\nstep 1\n{secret}")


def test_what_only_sounds_like_a_secret_stays() -> None:
    assert redact_text("a basic training run") == "a basic training run"
