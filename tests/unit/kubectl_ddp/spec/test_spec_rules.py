"""Rules of a job: contradictions are errors, and probable mistakes are warnings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.flags import ALL
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.rules import LAUNCHER_SETTINGS, warnings
from kubectl_ddp.spec.torchrun import SWITCHES
from kubectl_ddp.values.parsers import SecretKey
from kubectl_ddp.values.program import Module
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job

OTHER_GPUS = {"gpus": 1, "nproc": 1, "gpu_type": "A", "node_selector": {"nvidia.com/gpu.product": "B"}}


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"name": "a" * 49}, "character too long: the names of its pods would not fit 63 characters. Use at most 48."),
    ({"name": "a" * 48, "nnodes": NodeRange(1, 100_000)}, "is 4 characters too long"),
    ({"args": ("train", "--batch-slices", "2")}, "A batch of 2 slices cannot feed 4 ranks"),
    (OTHER_GPUS, "gpuType says 'A', and nodeSelector says 'B'. Keep one of them."),
])  # fmt: skip
def test_a_contradiction_is_one_sentence_with_the_values(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        a_job(**changes)


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "DDP_ANYTHING", *sorted(set(Env) - SWITCHES)]
)
def test_variables_of_the_launcher_are_not_the_users(name: str) -> None:
    with pytest.raises(UsageError, match=f"The environment variable {name} is set by the launcher"):
        a_job(env={name: "1"})
    with pytest.raises(UsageError, match=f"The environment variable {name} is set by the launcher"):
        a_job(secret_env={name: SecretKey("s", "k")})


@pytest.mark.parametrize(("name", "words"), [
    ("PET_MAX_RESTARTS", "would contradict the job's key maxRestarts"),
    ("PET_STANDALONE", "is a flag of the launcher that the job itself sets"),
])  # fmt: skip
def test_flags_of_the_launcher_that_the_job_sets_are_refused_with_what_to_use(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"The environment variable {name} {words}"):
        a_job(env={name: "1"})


@pytest.mark.parametrize("name", sorted(LAUNCHER_SETTINGS))
def test_other_flags_of_the_launcher_can_be_set(name: str) -> None:
    assert a_job(env={name: "x"}).env == {name: "x"}
    assert name in {flag.variable for flag in ALL if flag.in_environment}


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "NCCL_DEBUG", "TORCH_LOGS", "PYTHONUNBUFFERED", "HOME", *sorted(SWITCHES)]
)
def test_other_variables_are(name: str) -> None:
    assert a_job(env={name: "1"}).env == {name: "1"}


@pytest.mark.parametrize(("changes", "words"), [
    ({"env": {"DB_PASSWORD": "x"}}, "--secret-env DB_PASSWORD=SECRET:KEY"),
    ({"gpus": 8, "nproc": 6}, "2 GPUs of each node will stand idle: nproc is 6."),
    ({"image": "registry.example.com:5000/train"}, "may be another one on each node"),
    ({"image": "train:latest"}, "Name a version or a digest."),
])  # fmt: skip
def test_what_is_probably_not_meant_is_said(changes: dict[str, Any], words: str) -> None:
    [doubt] = warnings(a_job(**changes))
    assert words in str(doubt)


@pytest.mark.parametrize("changes", [
    {}, {"env": {"MAX_TOKENS": ""}}, {"image": "registry.example.com:5000/train:1.2"},
    {"image": "train@sha256:" + "0" * 64}, {"name": "a" * 48}, {"args": ()},
    {"args": ("train", "--global-batch", "4", "--batch-slices", "4")},
    {"program": Module("mine.train"), "args": ("--global-batch", "1")},
])  # fmt: skip
def test_what_is_plain_raises_no_doubt(changes: dict[str, Any]) -> None:
    assert warnings(a_job(**changes)) == []


def test_slices_that_may_share_a_gpu_are_doubted() -> None:
    [doubt] = warnings(a_job(mig="1g.10gb", gpus=1, nproc=1))
    assert "may share one GPU" in str(doubt)
    assert warnings(a_job(mig="1g.10gb", gpus=1, nproc=1, nnodes=NodeRange(1, 1))) == []
