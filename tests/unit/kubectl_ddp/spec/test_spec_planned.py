"""``--parallel auto``: the layout that a plan finds, with its reason; and a sentence where none can be known."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_trainer.common.layout_range import LayoutRange
from kubectl_ddp.errors import DdpError, PreflightFailed, UsageError
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.resolve import Resolved, resolve
from kubectl_ddp.spec.serialization import spec_from_dict, spec_to_dict
from kubectl_ddp.spec.value_source import Given, Kind, Origin

H100 = "NVIDIA-H100-80GB-HBM3"
LARGE = "train --task text --model gpt:layers=32,heads=32,width=4096 --window 2048 --global-batch 64 --precision bf16"


def resolved(words: str = LARGE, **changes: Any) -> Resolved:
    said: dict[str, Any] = {"module": "ddp_trainer", "gpus": 8, "gpuType": H100, "parallel": "auto"} | changes
    said = {key: value for key, value in said.items() if value is not None}
    layer = {"args": Given(words.split(), Origin(Kind.FLAG, "words"))}
    layer |= {key: Given(value, Origin(Kind.FLAG, key)) for key, value in said.items()}
    return resolve([layer], DefaultingContext(image="trainer:1"))


def test_the_best_layout_is_put_into_the_job_with_the_words_that_go_with_it() -> None:
    found = resolved()
    assert found.spec.parallel == LayoutRange.parse("shard=8")
    assert found.spec.args[-2] == "--micro-batch"
    (note,) = found.notes
    assert note.startswith(f"parallel auto is shard=8 and --micro-batch {found.spec.args[-1]}: the shortest step of ")
    assert "layouts that fit 8 H100 on one node, about " in note
    assert note.endswith((" of the step.", "hides behind computing."))
    assert found.origins["parallel"].reason == note
    assert spec_from_dict(spec_to_dict(found.spec)) == found.spec


def test_the_same_words_make_the_same_job() -> None:
    assert resolved().spec == resolved().spec


def test_what_the_job_says_itself_is_kept() -> None:
    found = resolved(f"{LARGE} --micro-batch 2")
    assert found.spec.args == tuple(f"{LARGE} --micro-batch 2".split())


def test_activations_are_computed_again_only_where_nothing_fits_without() -> None:
    assert "--activation-checkpointing" not in resolved(f"{LARGE} --micro-batch 4").spec.args
    many = resolved(f"{LARGE} --window 4096 --micro-batch 16 --global-batch 128")
    assert many.spec.args[-1] == "--activation-checkpointing"
    assert many.notes[0].endswith("Computing activations again takes 19 % of the step.")


SMALL = "train --task text --model gpt:layers=4,heads=4,width=64 --global-batch 64"


@pytest.mark.parametrize("option", ["--level exact", "--balance dynamic", "--channels-last", "--strategy manual"])
def test_what_goes_with_copies_alone_gets_copies_or_is_refused_in_the_trainers_words(option: str) -> None:
    layouts = resolved(f"{SMALL} {option}").spec.parallel
    assert layouts is not None
    assert layouts.largest.replica == 1
    with pytest.raises(UsageError) as caught:
        resolved(f"{LARGE} {option}")
    assert caught.value.message.startswith(f"{option} does not go with --parallel shard=8: ")
    assert caught.value.message.endswith(" No layout fits that goes with it.")
    assert caught.value.hint == "Leave one of them out."


def test_a_way_that_the_trainer_refuses_is_not_chosen() -> None:
    words = "--model gpt:layers=40,width=4096,heads=32 --window 45056 --global-batch 1 --precision bf16 --compile"
    found = resolved(f"train --task text {words}")
    assert found.spec.parallel is not None
    assert found.spec.parallel.largest.tp > 1
    assert "--activation-checkpointing" in found.spec.args
    assert "cheap" not in found.spec.args


def test_activations_are_computed_again_where_no_layout_that_is_allowed_fits_without() -> None:
    words = "--model gpt:layers=32,width=2560,heads=32 --window 2048 --micro-batch 8 --global-batch 64 --precision bf16"
    found = resolved(f"train --task text {words} --level exact")
    assert found.spec.parallel is not None
    assert found.spec.parallel.largest.replica == 1
    assert "--activation-checkpointing" in found.spec.args
    assert "--activation-checkpointing" not in resolved(f"train --task text {words}").spec.args


def test_an_elastic_job_grows_by_whole_replicas() -> None:
    found = resolved(nnodes="2:4")
    assert found.spec.parallel is not None
    assert found.spec.parallel.fixed is None
    smallest, largest = found.spec.parallel.smallest, found.spec.parallel.largest
    assert (smallest.world, largest.world) == (16, 32)
    assert smallest.replica == largest.replica
    assert "with all nodes" in found.notes[0]


def test_no_rank_is_left_without_a_slice_of_the_samples() -> None:
    layouts = resolved(f"{LARGE} --batch-slices 4").spec.parallel
    assert layouts is not None
    assert layouts.largest.data_size <= 4


def test_whoever_plans_himself_gets_the_job_without_a_layout() -> None:
    layer = {
        key: Given(value, Origin(Kind.FLAG, key))
        for key, value in {"module": "ddp_trainer", "args": LARGE.split(), "gpus": 8, "parallel": "auto"}.items()
    }
    found = resolve([layer], DefaultingContext(image="trainer:1", plans=False))
    assert (found.spec.parallel, found.spec.args, found.notes) == (None, tuple(LARGE.split()), ())


def test_a_label_of_the_machines_names_their_gpu() -> None:
    found = resolved(gpuType=None, **{"nodeSelector.nvidia.com/gpu.product": H100})
    assert found.spec.parallel == LayoutRange.parse("shard=8")


@pytest.mark.parametrize(
    ("words", "changes", "sentence", "way_out"),
    [
        (LARGE, {"module": "vision.train"}, "does not run the reference trainer", "Name a"),
        ("train --task digits", {}, "The job does not train the task 'text'", "Name a layout, as in --parallel"),
        ("train --task text --model mlp", {}, "The job's --model is 'mlp', and a plan can be", "Name a layout"),
        (LARGE, {"gpuType": None}, "needs the type of GPU", "Give --gpu-type, as in"),
        (LARGE, {"gpuType": "NVIDIA-B999"}, "'NVIDIA-B999', and the figures of such a GPU are not", "Name a layout"),
        (LARGE, {"gpus": None, "gpuType": None}, "on whole GPUs, and the job requests no GPUs.", "Name a layout"),
        (LARGE, {"gpus": None, "mig": "3g.40gb", "gpuType": None}, "the job requests slices of GPUs.", "Name a layout"),
        (f"{LARGE} --parallel tp=2", {}, "has --parallel auto, and its program also has --parallel.", "Keep one."),
        (f"{LARGE} --pipeline-schedule gpipe", {}, "the job has --pipeline-schedule gpipe.", "Name a layout"),
        (
            f"{LARGE} --window x",
            {},
            "--window of the job is 'x', which is not a whole number from 1",
            "Write it as '64'.",
        ),
        (
            f"{LARGE} --window 0",
            {},
            "--window of the job is '0', which is not a whole number from 1",
            "Write it as '64'.",
        ),
        ("train --task text --model gpt:layers=0", {}, "layers in --model of the job is '0', which is", "Write it as"),
    ],
)
def test_what_a_plan_cannot_know_is_one_sentence_with_a_way_out(
    words: str, changes: dict[str, Any], sentence: str, way_out: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(words, **changes)
    assert sentence in caught.value.message
    assert way_out in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "changes", "sentence"),
    [
        (LARGE.replace("width=4096", "width=16384"), {}, "No layout fits a model of"),
        (LARGE, {"nnodes": "1:2", "gpus": 1}, "keeps its replicas whole with nnodes 1:2"),
    ],
)
def test_where_none_fits_nothing_is_made(words: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DdpError) as caught:
        resolved(words, **changes)
    assert isinstance(caught.value, PreflightFailed), caught.value
    assert sentence in str(caught.value)
