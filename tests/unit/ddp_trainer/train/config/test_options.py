"""Options of the trainer: values and combinations that are refused, and the help."""

from __future__ import annotations

import pytest

from ddp_trainer.common.constants import Exit
from ddp_trainer.train.cli import main


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--epocs", "3"], "There is no flag '--epocs'. Did you mean --epochs?"),
        (["--global-batchsize=4"], "Did you mean --global-batch?"),
        (["--zzz"], "There is no flag '--zzz'. See "),
        (["--shards", "4"], "--shards is now --batch-slices."),
        (["--workers=2"], "--workers is now --loader-workers."),
        (["digits"], "There is no flag 'digits'."),
        (["--epochs", "many"], "Argument --epochs: invalid int value: 'many'."),
        (["--epochs"], "Argument --epochs: expected one argument."),
        (["--epochs", "0"], "--epochs is 0. Give 1 or more."),
        (["--optimizer", "adam"], "Argument --optimizer: 'adam' is none of adamw, sgd."),
        (["--learning-rate", "nan"], "--learning-rate is nan. Give a finite number above 0."),
        (["--learning-rate", "-1"], "--learning-rate is -1.0."),
        (["--weight-decay", "nan"], "--weight-decay is nan."),
        (["--global-batch", "2000000"], "--global-batch is 2000000. Give 1048576 or fewer."),
        (["--batch-slices", "65"], "--batch-slices is 65, but a global batch of 64 has at most 64 slices."),
        (["--seed", "-1"], "--seed is -1."),
        (["--keep", "0"], "--keep is 0."),
        (["--checkpoint-scope", "node"], "Argument --checkpoint-scope: 'node' is none of job, pod."),
        (["--strategy", "fsdp9"], "Argument --strategy: 'fsdp9' is none of ddp, "),
        (["--sync-steps", "0"], "--sync-steps is 0. Give 1 or more."),
        (["--micro-batch", "0"], "--micro-batch is 0. Give 1 or more."),
        (["--gc-steps", "-3"], "--gc-steps is -3. Give 1 or more."),
        (["--nonfinite-limit", "0"], "--nonfinite-limit is 0. Give 1 or more."),
        (["--bucket-mb", "nan"], "--bucket-mb is nan. Give a finite number above 0."),
        (["--precision", "fp64"], "Argument --precision: 'fp64' is none of "),
        (["--compile", "--compile-backend", "zzz"], "There is no compiler backend 'zzz'. Give one of "),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused_with_its_value(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == Exit.USAGE
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert sentence in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--strategy", "manual", "--static-graph"], "--static-graph is an option of DDP, and --strategy is manual."),
        (["--strategy", "manual", "--bucket-mb", "1"], "--bucket-mb is an option of DDP, and --strategy is manual."),
        (["--strategy", "single", "--no-gradient-as-bucket-view"], "--no-gradient-as-bucket-view is an option of DDP"),
        (["--static-graph", "--find-unused-parameters"], "A static graph finds unused weights by itself"),
        (["--strategy", "local-sgd", "--precision", "fp16"], "Give --precision bf16."),
        (["--compile-fallback"], "--compile-fallback was given without --compile. Add --compile."),
        (["--lr-scaling", "linear"], "--lr-scaling is linear and --lr-reference-batch is None. Give both"),
        (["--lr-reference-batch", "8"], "--lr-scaling is none and --lr-reference-batch is 8. Give both"),
        (["--on-nonfinite", "rollback"], "--on-nonfinite is rollback, but no checkpoints are kept."),
        (["--sync-batchnorm", "--device", "cpu"], "torch's SyncBatchNorm does not run on the CPU."),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DDP_CHECKPOINT_DIR", raising=False)
    assert main(["--max-steps", "1", *argv]) == Exit.USAGE
    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert sentence in output
    assert len(output.splitlines()) == 1


def test_help_shows_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    for heading in ("strategy:", "speed and memory:", "guards:", "optimization:"):
        assert f"\n{heading}\n" in output
    assert output.count("--no-gradient-as-bucket-view") >= 1
