"""Options that do not go with a layout: the plugin refuses what the trainer does, in the same words."""

from __future__ import annotations

from typing import Any, Final

import pytest

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.common.trainer_options import CHOICES, CLASHES, RENAMED, WITHOUT_SHARD, OptionConflict, Where
from ddp_trainer.train.cli import parse
from ddp_trainer.train.config.config import check_shard
from ddp_trainer.train.utils.errors import BadConfig
from kubectl_ddp.errors import UsageError
from kubectl_ddp.values.program import Module
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job

LAYOUTS: Final = {Where.SHARDED: "shard=4", Where.PP: "shard=2,pp=2", Where.TP: "tp=4", Where.UNSHARDED: "replicate=4"}
ANY: Final = {"--strategy": "manual", "--bucket-mb": "1.5", "--fsdp-blocks": "Block", "--fsdp-prefetch": "2"}
ONE_NODE: Final[dict[str, Any]] = {"nproc": 4, "nnodes": NodeRange(1, 1)}
BESIDE: Final = {"--recompute": "--activation-checkpointing"}
"""Option → a flag that the trainer requires with it."""


def given(clash: OptionConflict) -> list[str]:
    words = ["--task", "text", "--data", "/data", "--model", "gpt:layers=8"]
    for word in clash.words:
        words += [BESIDE[word.flag]] if word.flag in BESIDE else []
        words += [word.flag] if word.is_switch else [word.flag, word.value or ANY[word.flag]]
    return words


@pytest.mark.parametrize("clash", [*CLASHES, *WITHOUT_SHARD], ids=lambda value: f"{value.where}-{value.words[0].flag}")
def test_trainer_and_plugin_refuse_it_in_the_same_words(clash: OptionConflict) -> None:
    words, layout = given(clash), LAYOUTS[clash.where]
    with pytest.raises(BadConfig) as foreign:
        check_shard(parse([*words, "--parallel", layout]))
    with pytest.raises(UsageError) as own:
        a_job(args=("train", *words), parallel=LayoutRange.parse(layout), **ONE_NODE)
    assert (own.value.message, own.value.hint) == (foreign.value.message, foreign.value.hint)
    assert own.value.message.startswith(clash.message.split("{")[0])
    assert own.value.exit_code == 2


@pytest.mark.parametrize("words", [
    "--strategy ddp --level fast --balance static --evaluate-on all --fsdp-prefetch 0",
    "--precision fp16 --pipeline-schedule zero-bubble --recompute all --no-fsdp-reshard --fsdp-reshard",
])  # fmt: skip
def test_what_changes_nothing_goes_with_every_layout(words: str) -> None:
    text = ["--task", "text", "--data", "/data", *words.split()]
    for layout in LAYOUTS.values():
        check_shard(parse([*text, "--parallel", layout]))
        a_job(args=("train", *text), parallel=LayoutRange.parse(layout), **ONE_NODE)


@pytest.mark.parametrize("flag", CHOICES)
@pytest.mark.parametrize("layout", [None, "shard=4"])
def test_words_that_the_trainer_has_not_are_refused_with_those_it_has(flag: str, layout: str | None) -> None:
    job = ONE_NODE | {"parallel": layout and LayoutRange.parse(layout)}
    for word in CHOICES[flag]:
        parse([flag, word])
        a_job(args=("train", flag, word), **job)
    with pytest.raises(BadConfig, match=rf"Argument {flag}: 'foo' is none of {', '.join(CHOICES[flag])}"):
        parse([flag, "foo"])
    known = ", ".join([*CHOICES[flag]][:-1])
    with pytest.raises(UsageError, match=rf"The trainer has no {flag} 'foo'\. Give {known} or "):
        a_job(args=("train", f"{flag}=foo"), **job)


@pytest.mark.parametrize(("flag", "now"), RENAMED.items())
def test_a_flag_of_the_trainer_with_another_name_now_is_refused_with_it(flag: str, now: str) -> None:
    for text in ((flag, "4"), (f"{flag}=4",), (flag,)):
        with pytest.raises(BadConfig, match=f"^{flag} is now {now}[.]$"):
            parse(text)
        with pytest.raises(UsageError, match=f"^{flag} is now {now}[.]$"):
            a_job(args=("train", *text))
        a_job(program=Module("vision.train"), args=text)


def test_a_job_without_a_layout_has_no_options_of_shard() -> None:
    with pytest.raises(UsageError, match=r"--fsdp-offload is of --parallel shard=N, and --parallel is not given\."):
        a_job(args=("train", "--fsdp-offload"), **ONE_NODE)


def test_options_of_other_programs_are_their_own() -> None:
    args = ("--level", "exact", "--precision", "fp64")
    a_job(program=Module("vision.train"), args=args, parallel=LayoutRange.parse("shard=4"), **ONE_NODE)
