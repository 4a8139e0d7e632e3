"""Options of computing mean the same whether a rank holds the whole model or a piece of it."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch

from tests.local.workloads.train_forked import losses_of, run
from tests.local.workloads.train_layouts import Numbers

save_file = pytest.importorskip("safetensors.torch").save_file

AGAIN = "--activation-checkpointing --recompute"
STAGES = "--parallel pp=2 --micro-batch 2"
OUTSIDE = "--task tests.local.workloads.train_layouts:DroppedOutside"
LAID_OUT = "--task tests.local.workloads.train_layouts:LaidOut"
DROPPING = "--task tests.local.workloads.train_layouts:Dropped"


def save_weights(directory: Path) -> Path:
    """Other ones than those that are drawn, in two files and their index."""
    torch.manual_seed(5)
    weights = dict(Numbers().model().state_dict())
    places = {name: f"{number % 2}.safetensors" for number, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({name: weights[name] for name, place in places.items() if place == file}, directory / file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    return index


WEIGHTS = "--init-from INDEX"
STAGES_AGAIN, IN_ROUND = f"{DROPPING} {STAGES} {AGAIN} all", f"{DROPPING} {STAGES} --pipeline-schedule gpipe"
RUNS = {
    WEIGHTS: (WEIGHTS, 0.0),
    f"{WEIGHTS} --parallel tp=2 {AGAIN} cheap": (WEIGHTS, 1e-5),
    f"{WEIGHTS} --parallel shard=2 {AGAIN} 2 --compile --compile-backend eager": (WEIGHTS, 1e-5),
    f"{WEIGHTS} {STAGES} {AGAIN} cheap": (WEIGHTS, 1e-5),
    "--precision bf16": ("--precision bf16", 0.0),
    "--parallel tp=2 --precision bf16": ("--precision bf16", 1e-4),
    "--precision fp16": ("--precision bf16", 1e-3),
    f"{STAGES} --precision fp16": ("--precision fp16", 1e-4),
    LAID_OUT: (LAID_OUT, 0.0),
    f"{LAID_OUT} --parallel replicate=2": (LAID_OUT, 1e-5),
    f"{LAID_OUT} --parallel shard=2 --batch-slices 3": (LAID_OUT, 1e-5),  # a rank with one slice makes an empty pass
    OUTSIDE: (OUTSIDE, 0.0),
    f"{OUTSIDE} --parallel tp=2 {AGAIN} 2": (OUTSIDE, 1e-5),
    STAGES_AGAIN: (STAGES_AGAIN, 0.0),
    IN_ROUND: (STAGES_AGAIN, 1e-6),
}
"""Flags of a run, whose losses it has, and up to which relative difference."""


def test_models_in_pieces_compute_as_the_options_say(tmp_path: Path) -> None:
    index = save_weights(tmp_path)
    runs = [run("--max-steps", "2", *flags.replace("INDEX", str(index)).split()) for flags in RUNS]
    found = dict(zip(RUNS, losses_of(tmp_path, *runs), strict=True))
    for flags, (like, off) in RUNS.items():
        assert found[flags] == pytest.approx(found[like], rel=off), flags
    kinds = [found[flag] for flag in (WEIGHTS, "--precision fp16", OUTSIDE, STAGES_AGAIN)]
    assert all(one != pytest.approx(other, rel=1e-4) for one, other in combinations(kinds, 2))
