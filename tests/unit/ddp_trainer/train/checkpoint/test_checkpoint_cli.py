"""Looking into checkpoints, taking weights out of them, and beginning with weights of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ddp_trainer.common.constants import Exit
from ddp_trainer.train import Config, run
from ddp_trainer.train.checkpoint.checkpoint_cli import main
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.train_builders import HERE, Lines, lines_config


def a_config(**changes: object) -> Config:
    return lines_config(**{"epochs": 2, "batch_slices": 1, "checkpoint_seconds": None, **changes})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """After steps 5 and 6, and after 3, whose evaluation was the best."""
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
def test_a_look_at_nothing_is_no_success(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path)]) == Exit.FAILURE
    assert "There is no checkpoint in" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_exported_weights_are_those_of_a_plain_model(suffix: str, checkpoints: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / f"weights{suffix}"
    assert main(["export", str(checkpoints), "--to", str(file)]) == Exit.SUCCESS
    if suffix == ".pt":
        weights = torch.load(file, weights_only=True)
    else:
        weights = pytest.importorskip("safetensors.torch").load_file(file)
    state = torch.load(checkpoints / "step-00000006" / "state.pt", weights_only=True)
    model = nn.Linear(1, 1)
    model.load_state_dict(weights)
    assert torch.equal(model.weight, state["model"]["weight"])


def test_the_step_or_the_best_may_be_chosen(checkpoints: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.pt", "b.pt", "c.pt")]
    assert main(["export", str(checkpoints), "--to", str(files[0]), "--step", "5"]) == Exit.SUCCESS
    assert main(["export", str(checkpoints), "--to", str(files[1]), "--best", "loss"]) == Exit.SUCCESS
    assert main(["export", str(checkpoints), "--to", str(files[2])]) == Exit.SUCCESS
    for step, file in zip((5, 3, 6), files, strict=True):
        state = torch.load(checkpoints / f"step-{step:08}" / "state.pt", weights_only=True)
        assert torch.equal(torch.load(file, weights_only=True)["weight"], state["model"]["weight"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "{c}", "--to", "{t}/w.pt", "--step", "77"], "There is no valid checkpoint of step 77 in "),
        (
            ["export", "{c}", "--to", "{t}/w.pt", "--best", "taste"],
            "There is no valid checkpoint that was evaluated by 'taste' in ",
        ),
        (["export", "{c}", "--to", "/proc/x/w.pt"], "/proc/x/w.pt cannot be written"),
        (["export", "{c}", "--to", "/proc/w.pt"], "/proc/w.pt cannot be written: No such file or directory."),
        (["export", "{c}", "--to", "{t}"], "cannot be written: Is a directory."),
        (["export", "{c}"], "The following arguments are required: --to."),
        (["inspect", "{t}/nowhere"], "does not exist"),
        (["look"], "Argument COMMAND: invalid choice: 'look'"),
    ],
)
def test_what_cannot_be_meant_gets_a_sentence(
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
    config = a_config(init_from=tmp_path / "mine.pt", checkpoint_dir=tmp_path / "c", max_steps=2)
    run(config, Lines(), env=HERE)
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
    paths = {keeps_optimizer: tmp_path / str(keeps_optimizer) for keeps_optimizer in (True, False)}
    for keeps_optimizer, path in paths.items():
        config = a_config(
            init_from=tmp_path / "mine.pt", init_optimizer=keeps_optimizer, checkpoint_dir=path, max_steps=1
        )
        run(config, Lines(), env=HERE)
    states = {
        keeps_optimizer: torch.load(path / "step-00000001" / "state.pt", weights_only=True)
        for keeps_optimizer, path in paths.items()
    }
    counts = {
        keeps_optimizer: state["optimizer"]["state"][0]["step"].item() for keeps_optimizer, state in states.items()
    }
    assert counts == {True: 2, False: 1}
    assert states[True]["optimizer"]["param_groups"][0]["peak_lr"] == 0.1


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
    with pytest.raises(BadConfig, match="which cannot be read: No such file"):
        loss_after_one_step(tmp_path / "mine.safetensors")


def test_safetensors_is_asked_for_in_a_sentence_where_it_is_missing(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main(["export", str(checkpoints), "--to", str(tmp_path / "w.safetensors")]) == Exit.USAGE
    assert "Install kubectl-ddp[safetensors]" in capsys.readouterr().err
