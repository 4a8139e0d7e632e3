"""One state is the same under every layout, whichever has saved it, and damage to a rank's piece is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ddp_trainer.train.checkpoint.dcp_reader import ShardedCheckpointReader, assemble_state
from ddp_trainer.train.checkpoint.manifest import Manifest
from tests.local.workloads import train_pieces
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_pieces import FIRST, LATER, LAYOUTS

SPREAD = ("shard=2", "tp=2", "pp=2")


def test_a_state_saved_under_any_layout_is_loaded_under_any_other_bit_for_bit(tmp_path: Path) -> None:
    """Then a bit of the other rank's file flips, and then its disk is full: the checkpoint before is the newest."""
    program = ("-m", train_pieces.__name__)
    with WorkerGroup(2, [str(tmp_path)], directory=tmp_path, program=program) as group:
        report = list(group.events())
        assert group.finish() == [0, 0], group.stderr() + group.stderr(1)
    *states, saved, loaded, refused = report
    assert len({state["digest"] for state in states}) == 1
    assert [state["durable"] for state in states[: len(LAYOUTS)]] == [FIRST] * len(LAYOUTS)
    assert len(states) == len(LAYOUTS) + len(LAYOUTS) ** 2
    for layout in LAYOUTS:
        files = {file.name for file in (tmp_path / layout / f"step-{FIRST:08d}").iterdir()}
        assert files == {"manifest.json", "state.pt"} | ({"pieces-00001.pt"} if layout in SPREAD else set())
    assert (saved, loaded, refused) == ({"durable": LATER}, {"loaded": FIRST}, {"durable": None})
    assert "pieces-00001.pt does not have the digest that manifest.json names. Going on from the one" in group.stderr()
    assert "rank 1 could not write its pieces: File too large. Training continues" in group.stderr()
    left = sorted(entry.name for entry in (tmp_path / "shard=2").iterdir())
    assert left == ["CLAIM", f"step-{FIRST:08d}", f"step-{LATER:08d}"]
    in_pieces = tmp_path / "shard=2" / f"step-{FIRST:08d}"
    assert by_torch(in_pieces).keys() == weights(in_pieces).keys()
    assert all(torch.equal(weight, weights(in_pieces)[name]) for name, weight in by_torch(in_pieces).items())


def by_torch(directory: Path) -> dict[str, torch.Tensor]:
    """Load the weights as a script without this trainer."""
    reader = ShardedCheckpointReader(directory)
    state = {name: torch.empty(size) for name, size in reader.sizes.items() if name.startswith("model.")}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, storage_reader=reader, no_dist=True)
    return {name.removeprefix("model."): weight for name, weight in state.items()}


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """Load the weights as the trainer."""
    return dict(assemble_state(directory, Manifest.from_json((directory / "manifest.json").read_text()))["model"])
