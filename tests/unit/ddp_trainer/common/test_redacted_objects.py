"""Redaction of Kubernetes objects, specifications and reports."""

from __future__ import annotations

import json

from ddp_trainer.common.redacted_objects import redact_object
from ddp_trainer.common.safe_text import HIDDEN


def test_a_token_among_arguments_is_hidden() -> None:
    secret = "hf_" + "a1B2" * 8
    assert secret not in json.dumps(redact_object({"spec": {"args": ["--login", secret]}}))


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


def test_a_flag_of_a_secret_hides_the_item_after_it_and_no_other() -> None:
    words = ["train.py", "--db-pass", "battery", "--epochs", "3", "--api-key=battery", "--tokenizer", "gpt2"]
    shown = ["train.py", "--db-pass", HIDDEN, "--epochs", "3", f"--api-key={HIDDEN}", "--tokenizer", "gpt2"]
    assert redact_object({"args": words})["args"] == shown


def test_keys_of_kubeconfigs_and_registries_are_hidden() -> None:
    users = [{"user": {"client-key-data": "battery", "token": "battery"}}]
    auths = {"registry.example.com": {"auth": "battery", "identitytoken": "battery"}}
    volumes = [{"secret": {"secretName": "hub"}}]
    found = redact_object({"users": users, "auths": auths, "volumes": volumes})
    assert "battery" not in json.dumps(found)
    assert found["volumes"] == volumes


def test_a_name_that_only_sounds_secret_keeps_its_value() -> None:
    assert redact_object({"name": "BYPASS_CACHE", "value": "1"})["value"] == "1"
