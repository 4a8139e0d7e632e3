"""A job's words, found again from what it came to."""

from __future__ import annotations

from hypothesis import given

from kubectl_ddp.spec.job_key import Given, Origin, OriginKind
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, entries, minimal_layer, origin_from_job, resolve
from tests.support.jobs import jobs

FLAG = Origin(OriginKind.FLAG, "--test")
SURROUNDINGS = DefaultingContext(image="ddp-trainer:1")


@given(jobs())
def test_what_is_found_makes_the_same_job_again(plain: JobSpec) -> None:
    words = dict(entries(plain, FLAG))
    spec = resolve([words], SURROUNDINGS).spec  # with what its preset and the rules add
    assert resolve([minimal_layer(spec, origin_from_job("before"))], DefaultingContext(image="another:1")).spec == spec


def test_what_followed_from_others_is_left_to_follow_anew() -> None:
    words = {"name": "digits", "module": "ddp_trainer", "nnodes": "2", "gpus": "8", "env.NCCL_DEBUG": "INFO"}
    spec = resolve([{key: Given(value, FLAG) for key, value in words.items()}], SURROUNDINGS).spec
    found = minimal_layer(spec, origin_from_job("digits"))
    assert set(found) == {*words, "image"}
    changed = resolve([found, {"gpus": Given("2", FLAG)}], SURROUNDINGS).spec
    assert (changed.nproc, str(changed.cpu), str(changed.memory)) == (2, "6", "24Gi")
    assert changed.env["NCCL_DEBUG"] == "INFO"
