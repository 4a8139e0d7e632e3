"""The identity of the run in a manifest, and which runs may load a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from ddp_trainer.train.checkpoint.manifest import architecture, check_same_run, signature
from ddp_trainer.train.data.sample_order import COMPUTED, ORDERS
from ddp_trainer.train.utils.errors import BadTask, CheckpointMismatch
from ddp_workloads.gpt import Gpt
from tests.support.train_builders import IDENTITY, a_manifest

MANIFEST = a_manifest(5)


def test_the_same_run_at_another_world_size_may_go_on() -> None:
    check_same_run(replace(MANIFEST, world_size=7), IDENTITY, where="here", batch_slices=None)


@pytest.mark.parametrize(
    ("field", "stored", "sentence"),
    [
        ("seed", 3, "was written with seed 3, and this run has 0. Give --seed 3 to continue from it"),
        ("global_batch", 32, "with global batch 32, and this run has 4. Give --global-batch 32"),
        ("task", "other", "with task other, and this run has lines. Bring back that task"),
        ("model", "9 weights, x", "with model 9 weights, x, and this run has 2 weights"),
        ("data", "def", "with data digest def, and this run has abc"),
        ("samples", 11, "with number of samples 11, and this run has 10"),
        ("order", "other/2", "with order algorithm other/2"),
    ],
)
def test_another_run_is_refused_with_both_values_and_the_way_out(field: str, stored: object, sentence: str) -> None:
    identity = replace(IDENTITY, **{field: stored})  # type: ignore[arg-type] # by name
    with pytest.raises(CheckpointMismatch) as info:
        check_same_run(replace(MANIFEST, identity=identity), IDENTITY, where="in /c", batch_slices=None)
    assert sentence in str(info.value)
    assert "another --checkpoint-dir" in str(info.value)
    assert info.value.exit_code == 2


def test_slices_must_agree_only_when_they_were_asked_for() -> None:
    check_same_run(MANIFEST, IDENTITY, where="in /c", batch_slices=4)
    with pytest.raises(CheckpointMismatch, match=r"slices 4, and this run has 8\. Give --batch-slices 4"):
        check_same_run(MANIFEST, IDENTITY, where="in /c", batch_slices=8)


def test_each_known_order_of_samples_is_accepted() -> None:
    for order in ORDERS:
        stored = replace(MANIFEST, identity=replace(IDENTITY, order=order))
        check_same_run(stored, replace(IDENTITY, order=COMPUTED), where="in /c", batch_slices=None)


def test_the_signature_tells_models_of_equal_size_apart() -> None:
    assert signature(nn.Linear(2, 3)) == signature(nn.Linear(2, 3))
    assert signature(nn.Linear(2, 3)) != signature(nn.Sequential(nn.Linear(2, 3)))


class Cut(nn.Linear):
    """A model whose shapes do not determine its architecture."""

    def __init__(self, architecture: object) -> None:
        super().__init__(2, 3)
        self.architecture = architecture


def test_another_architecture_of_the_same_shapes_is_refused_with_both() -> None:
    four_heads, two_heads = (replace(IDENTITY, architecture=architecture(Cut({"heads": heads}))) for heads in (4, 2))
    check_same_run(replace(MANIFEST, identity=four_heads), four_heads, where="in /c", batch_slices=None)
    with pytest.raises(CheckpointMismatch, match=r"with architecture heads=4, and this run has heads=2\. Bring back"):
        check_same_run(replace(MANIFEST, identity=four_heads), two_heads, where="in /c", batch_slices=None)


def test_a_gpt_says_how_many_heads_it_has() -> None:
    gpts = [Gpt(vocabulary=8, window=4, layers=1, heads=heads, width=8) for heads in (4, 2)]
    assert [architecture(gpt) for gpt in gpts] == ["heads=4", "heads=2"]
    assert len({signature(gpt) for gpt in gpts}) == 1


def test_an_architecture_must_be_of_plain_values_and_other_attributes_of_the_name_say_nothing() -> None:
    with pytest.raises(BadTask, match=r"architecture of the model, a Cut, cannot be written .* Object of type Linear"):
        architecture(Cut({"layer": nn.Linear(1, 1)}))
    assert architecture(Cut("resnet")) == architecture(Cut({})) == ""
