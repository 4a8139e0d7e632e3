"""Secrets leave neither texts nor objects, whatever stands around them, and harmless words stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.safe_text import HIDDEN, TOO_MANY, clean_text, redact_object, redact_text
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
    quotes = before.count('"') + before.count("'") + before.count("`")
    if quotes == 0:
        assert WORD not in redact_text(f"{before}\nstep 1\n{secret}")


def test_a_variable_keeps_its_value_only_where_its_name_is_known_to_be_harmless() -> None:
    env = [
        {"name": "WANDB_API_KEY", "value": "12345"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "COMPANY_SETTING", "value": "teal"},
        {"name": "HTTPS_PROXY", "value": "http://me:battery@proxy.example.com"},
        {"name": "MAX_TOKENS", "value": "2048"},
        {"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ]
    values = {variable["name"]: variable for variable in redact_object({"env": env})["env"]}
    assert values["WANDB_API_KEY"]["value"] == values["COMPANY_SETTING"]["value"] == HIDDEN
    assert values["HTTPS_PROXY"]["value"] == f"http://{HIDDEN}@proxy.example.com"
    assert (values["NCCL_DEBUG"]["value"], values["MAX_TOKENS"]["value"]) == ("INFO", "2048")
    assert values["HUB_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}


def test_the_specification_in_the_annotation_is_redacted_too() -> None:
    text = json.dumps({"env": {"DB_PASSWORD": "correct-horse", "COLOUR": "teal", "BATCH": "64"}})
    shown = redact_object({"metadata": {"annotations": {"ddp.dev/spec": text}}})["metadata"]["annotations"]
    assert json.loads(shown["ddp.dev/spec"]) == {"env": {"DB_PASSWORD": HIDDEN, "COLOUR": HIDDEN, "BATCH": "64"}}


def test_a_secrets_data_and_what_was_applied_last_never_leave() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "hub"}, "data": {"a": "Yg=="}, "stringData": {"c": "d"}}
    assert redact_object(secret) == {"kind": "Secret", "metadata": {"name": "hub"}}
    last = "kubectl.kubernetes.io/last-applied-configuration"
    assert redact_object({"metadata": {"annotations": {last: "{}", "kept": "x"}, "managedFields": []}}) == {
        "metadata": {"annotations": {"kept": "x"}}
    }


ANNOTATED = {"COOKIE": "chocolate", "PGPASS": "correct", "command": ["curl", '{"api_key": "horse"}']}


def test_names_in_the_json_of_an_annotation_are_judged_as_all_others_are() -> None:
    shown = json.dumps(redact_object({"metadata": {"annotations": {"ddp.dev/spec": json.dumps({"env": ANNOTATED})}}}))
    assert [word for word in ("chocolate", "correct", "horse") if word in shown] == []


def test_what_only_sounds_like_a_secret_stays() -> None:
    assert redact_object({"name": "BYPASS_CACHE", "value": "1"})["value"] == "1"
    assert redact_text("a basic training run") == "a basic training run"


def test_a_flag_of_a_secret_hides_the_item_after_it_and_no_other() -> None:
    words = ["train.py", "--db-pass", "battery", "--epochs", "3", "--api-key=battery", "--tokenizer", "gpt2"]
    shown = ["train.py", "--db-pass", HIDDEN, "--epochs", "3", f"--api-key={HIDDEN}", "--tokenizer", "gpt2"]
    assert redact_object({"args": words})["args"] == shown


def test_keys_of_kubeconfigs_and_registries_are_hidden() -> None:
    found = redact_object(
        {
            "users": [{"user": {"client-key-data": "battery", "token": "battery"}}],
            "auths": {"registry.example.com": {"auth": "battery", "identitytoken": "battery"}},
            "volumes": [{"secret": {"secretName": "hub"}}],
        }
    )
    assert "battery" not in json.dumps(found)
    assert found["volumes"] == [{"secret": {"secretName": "hub"}}]
