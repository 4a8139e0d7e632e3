"""Commands on checkpoints, and ``--init-from``: inspect, verify, export, initial weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from ddp_trainer.common.constants import Exit
from ddp_trainer.train import Config, run
from ddp_trainer.train.checkpoint.checkpoint_cli import main
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.train_builders import HERE, Lines, lines_config


def load(file: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", torch.load(file, weights_only=True))


def a_config(**changes: object) -> Config:
    return lines_config(**{"epochs": 2, "batch_slices": 1, "checkpoint_seconds": None, **changes})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Checkpoints of the steps 5 and 6, and of step 3, which has the lowest loss."""
    path = tmp_path / "checkpoints"
    run(a_config(checkpoint_dir=path, checkpoint_steps=1, keep=2, keep_best="loss"), Lines(), env=HERE)
    return path


def test_inspect_shows_what_is_there(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoints / "step-00000005" / "state.pt").write_bytes(b"torn")
    assert main(["inspect", str(checkpoints)]) == Exit.FAILURE
    output = capsys.readouterr()
    header, newest, torn, *_ = output.out.splitlines()
    assert header.split() == ["STEP", "EPOCH", "SIZE", "WORLD", "WRITTEN", "METRICS", "VALID"]
    assert newest.split()[0] == "6"
    assert "loss=" in newest
    assert newest.endswith("yes")
    assert "state.pt has 4 of" in torn
    assert output.err.startswith(f"{checkpoints / 'step-00000005'}: state.pt has 4 of")
    assert output.err.count("\n") == 1


def test_inspect_says_in_json_what_a_checkpoint_holds(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoints), "-o", "json"]) == Exit.SUCCESS
    newest = json.loads(capsys.readouterr().out)[0]
    assert (newest["step"], newest["valid"], newest["world_size"]) == (6, True, 1)
    assert "model (2 numbers in 2 tensors)" in newest["contents"]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_missing_checkpoint_is_a_failure(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path)]) == Exit.FAILURE
    assert "There is no checkpoint in" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_exported_weights_are_those_of_a_plain_model(suffix: str, checkpoints: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / f"weights{suffix}"
    assert main(["export", str(checkpoints), "--to", str(file)]) == Exit.SUCCESS
    model = nn.Linear(1, 1)
    model.load_state_dict(load(file) if suffix == ".pt" else pytest.importorskip("safetensors.torch").load_file(file))
    assert torch.equal(model.weight, load(checkpoints / "step-00000006" / "state.pt")["model"]["weight"])


def test_the_step_or_the_best_may_be_chosen(checkpoints: Path, tmp_path: Path) -> None:
    for step, options in ((5, ["--step", "5"]), (3, ["--best", "loss"])):
        file = tmp_path / f"{step}.pt"
        assert main(["export", str(checkpoints), "--to", str(file), *options]) == Exit.SUCCESS
        state = load(checkpoints / f"step-{step:08}" / "state.pt")
        assert torch.equal(load(file)["weight"], state["model"]["weight"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "{c}", "--to", "{t}/w.pt", "--step", "77"], "There is no valid checkpoint of step 77 in "),
        (["export", "{c}", "--to", "{t}/w.pt", "--best", "taste"], "valid checkpoint that was evaluated by 'taste' in"),
        (["export", "{c}", "--to", "/proc/x/w.pt"], "/proc/x/w.pt cannot be written"),
        (["export", "{c}", "--to", "/proc/w.pt"], "/proc/w.pt cannot be written: No such file or directory."),
        (["export", "{c}", "--to", "{t}"], "cannot be written: Is a directory."),
        (["export", "{c}"], "The following arguments are required: --to."),
        (["inspect", "{t}/nowhere"], "does not exist"),
        (["look"], "Argument COMMAND: invalid choice: 'look'"),
    ],
)
def test_a_wrong_request_is_refused(
    arguments: list[str], sentence: str, checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(c=checkpoints, t=tmp_path) for argument in arguments]) == Exit.USAGE
    stderr = capsys.readouterr().err
    assert sentence in stderr
    assert stderr.startswith("error: ")


WEIGHTS = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([0.0])}


def loss_after_one_step(file: Path, **changes: object) -> float:
    config = a_config(init_from=file, epochs=1, max_steps=1, learning_rate=1e-9, **changes)
    loss = run(config, Lines(), env=HERE).summary.loss
    assert loss is not None
    return loss


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        {"model": WEIGHTS, "epoch": 3},
        {"state_dict": {f"module.{name}": tensor for name, tensor in WEIGHTS.items()}},
        {"model_state_dict": {f"module._orig_mod.{name}": tensor for name, tensor in WEIGHTS.items()}},
    ],
    ids=["bare", "model", "of DDP", "compiled, of DDP"],
)
def test_a_run_begins_with_the_weights_of_a_plain_checkpoint(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "mine.pt")
    assert loss_after_one_step(tmp_path / "mine.pt") < 1e-6


def test_a_run_begins_with_weights_of_a_safetensors_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch").save_file(WEIGHTS, tmp_path / "mine.safetensors")
    assert loss_after_one_step(tmp_path / "mine.safetensors") < 1e-6


def test_a_checkpoint_of_the_run_goes_before_the_weights_it_began_with(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "mine.pt")
    run(a_config(init_from=tmp_path / "mine.pt", checkpoint_dir=tmp_path / "c", max_steps=2), Lines(), env=HERE)
    (tmp_path / "mine.pt").write_bytes(b"gone")
    more = a_config(init_from=tmp_path / "mine.pt", checkpoint_dir=tmp_path / "c", max_steps=3)
    assert run(more, Lines(), env=HERE).summary.steps == 3


def test_the_state_of_the_optimizer_is_taken_where_asked(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    model.load_state_dict(WEIGHTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
    torch.autograd.backward((model(torch.ones(1, 1)) - 50).square().sum())
    optimizer.step()
    torch.save({"model": WEIGHTS, "optimizer": optimizer.state_dict()}, tmp_path / "mine.pt")
    for keeps_optimizer in (True, False):
        path = tmp_path / str(keeps_optimizer)
        options = {"init_optimizer": keeps_optimizer, "checkpoint_dir": path, "max_steps": 1}
        run(a_config(init_from=tmp_path / "mine.pt", **options), Lines(), env=HERE)
        stored = load(path / "step-00000001" / "state.pt")["optimizer"]
        assert stored["state"][0]["step"].item() == 1 + keeps_optimizer
        assert stored["param_groups"][0]["peak_lr"] == 0.1


@pytest.mark.parametrize(
    ("content", "flags", "sentence"),
    [
        ({"weight": torch.zeros(1, 1)}, {}, "which lacks bias"),
        ({**WEIGHTS, "extra": torch.zeros(1)}, {}, "which has too much: extra"),
        ({**WEIGHTS, "bias": torch.zeros(4)}, {}, r"where bias has the shape \(4,\), and in the model \(1,\)"),
        ({"weights": "none"}, {}, "which holds no weights"),
        ([1], {}, "which holds no weights"),
        (WEIGHTS, {"init_optimizer": True}, "which holds no optimizer"),
        ({"model": WEIGHTS, "optimizer": {"a": 1}}, {"init_optimizer": True}, "whose optimizer is another"),
        (nn.Linear(1, 1), {}, "cannot be loaded for safety"),
    ],
)
def test_a_wrong_file_is_refused(content: object, flags: dict[str, object], sentence: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "mine.pt")
    with pytest.raises(BadConfig, match=sentence):
        loss_after_one_step(tmp_path / "mine.pt", **flags)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="which cannot be read: No such file"):
        loss_after_one_step(tmp_path / "mine.pt")


def test_safetensors_is_asked_for_in_a_sentence_where_it_is_missing(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main(["export", str(checkpoints), "--to", str(tmp_path / "w.safetensors")]) == Exit.USAGE
    assert "Install kubectl-ddp[safetensors]" in capsys.readouterr().err
