"""Options of the trainer: from flags and the environment to a configuration."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import CheckpointScope, Env, Exit
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train.api import with_defaults
from ddp_trainer.train.cli import main, parse
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.train_builders import Lines


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--epocs", "3"], "There is no flag '--epocs'. Did you mean --epochs?"),
        (["--global-batchsize=4"], "Did you mean --global-batch?"),
        (["--zzz"], "There is no flag '--zzz'. See "),
        (["--shards", "4"], "--shards is now --batch-slices."),
        (["digits"], "There is no flag 'digits'."),
        (["--epochs", "many"], "Argument --epochs: invalid int value: 'many'."),
        (["--epochs"], "Argument --epochs: expected one argument."),
        (["--optimizer", "adam"], "Argument --optimizer: 'adam' is none of adamw, sgd."),
        (["--learning-rate", "nan"], "--learning-rate is nan. Give a finite number above 0."),
        (["--global-batch", "2000000"], "--global-batch is 2000000. Give 1048576 or fewer."),
        (["--batch-slices", "65"], "--batch-slices is 65, but a global batch of 64 has at most 64 slices."),
        (["--seed", "-1"], "--seed is -1."),
        (["--micro-batch", "0"], "--micro-batch is 0. Give 1 or more."),
        (["--compile", "--compile-backend", "zzz"], "There is no compiler backend 'zzz'. Give one of "),
        (["--strategy", "manual", "--static-graph"], "--static-graph is an option of DDP, and --strategy is manual."),
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
def test_wrong_flags_and_options_that_do_not_go_together_are_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DDP_CHECKPOINT_DIR", raising=False)
    assert main(["--max-steps", "1", *argv]) == Exit.USAGE
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert sentence in output.err
    assert (len(output.err.splitlines()), output.out) == (1, "")


def test_help_shows_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    for heading in ("strategy:", "speed and memory:", "guards:", "optimization:"):
        assert f"\n{heading}\n" in output
    assert output.count("--no-gradient-as-bucket-view") >= 1


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RANK": "one"}, "RANK is 'one'. Set it to a whole number."),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2."),
        ({"DDP_GRACE_SECONDS": "soon"}, "DDP_GRACE_SECONDS is 'soon'."),
        ({"DDP_CHECKPOINT_SCOPE": "node"}, "DDP_CHECKPOINT_SCOPE is 'node'. Set it to job or pod."),
        ({"DDP_SURVIVE_ON_NCCL": "maybe"}, "DDP_SURVIVE_ON_NCCL is 'maybe'. Set it to 1 or 0."),
        ({"DDP_PARALLEL": "ddp=4"}, "DDP_PARALLEL is 'ddp=4': 'ddp' is not a dimension of a layout; use replicate,"),
    ],
)
def test_a_wrong_variable_is_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        Environment.from_env(environ)


def test_our_generation_goes_before_torchruns_restart_count() -> None:
    assert Environment.from_env({"DDP_GENERATION": "7", "TORCHELASTIC_RESTART_COUNT": "2"}).generation == 7


@pytest.mark.parametrize(
    ("environ", "fewest", "most"),
    [
        ({"PET_NNODES": "2"}, None, 4),
        ({"PET_NNODES": "2:2"}, 4, 4),
        ({"PET_NNODES": "1:4"}, 2, 8),
        ({"PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "8"}, 8, 32),
        ({"PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "gpu"}, 2, 8),
        ({"PET_NNODES": "many"}, None, None),
        ({"DDP_NODES": "1:3"}, 2, 6),
        ({"PET_NNODES": "2", "DDP_NODES": "1:2"}, 2, 4),
    ],
)
def test_the_launchers_nodes_bound_the_ranks(environ: dict[str, str], fewest: int | None, most: int | None) -> None:
    env = Environment.from_env({"LOCAL_WORLD_SIZE": "2", **environ})
    assert (env.min_ranks, env.max_ranks) == (fewest, most)


@pytest.mark.parametrize("text", ["not json", "[1]", '{"failure": "x"}'])
def test_unreadable_restart_counts_do_not_stop_a_run(text: str) -> None:
    assert Environment.from_env({"DDP_RESTARTS": text}).restarts == {}


def test_a_flag_goes_before_the_launchers_directory() -> None:
    env = Environment(run_dir=Path("/r"), checkpoint_dir=Path("/env"), checkpoint_scope=CheckpointScope.POD)
    taken = with_defaults(Config(), env)
    assert (taken.checkpoint_dir, taken.checkpoint_scope) == (Path("/env"), CheckpointScope.POD)
    assert taken.summary == Path("/r/summary.json")
    given = with_defaults(Config(checkpoint_dir=Path("/flag"), summary=Path("/s")), env)
    assert (given.checkpoint_dir, given.summary) == (Path("/flag"), Path("/s"))
    assert given.checkpoint_scope is CheckpointScope.POD


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--max-steps", "1", "--checkpoint-dir", str(tmp_path / "file" / "c")]) == Exit.USAGE
    assert f"{tmp_path / 'file' / 'c'} cannot be used: Not a directory." in capsys.readouterr().err


def test_json_lines_are_all_there_is_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--max-steps", "2", "--log-json", "--log-steps", "1"]) == 0
    output = capsys.readouterr()
    events = [json.loads(line) for line in output.out.splitlines()]
    assert [event["event"] for event in events] == ["started", "step", "step", "evaluated", "summary"]
    assert output.err == ""


def test_an_error_of_the_user_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lines, "losses", lambda *_: 1 / 0)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert main(["--task", "tests.support.train_builders:Lines"]) == Exit.FAILURE
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("argv", [["--help"], ["--epocs"]])
def test_help_and_wrong_flags_need_no_torch(argv: list[str]) -> None:
    program = (
        "import sys\n"
        "from ddp_trainer.train.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n    assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, *argv], check=True, capture_output=True, timeout=60)


def test_the_jobs_layout_is_taken_where_no_flag_gives_one() -> None:
    env = Environment.from_env({Env.PARALLEL: "replicate=1:4"})
    assert with_defaults(Config(), env).parallel == LayoutRange.parse("replicate=1:4")
    assert with_defaults(parse(["--parallel", "replicate=2"]), env).parallel == LayoutRange.parse("replicate=2")
    assert with_defaults(Config(), Environment.from_env({})).parallel is None
