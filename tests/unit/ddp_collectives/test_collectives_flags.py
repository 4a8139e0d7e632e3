"""Flags of ``ddp-launch collectives``: what they mean, and one sentence for what they cannot mean."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from ddp_collectives import cli, flags
from ddp_collectives.flags import BadRequest


def test_torchruns_flags_and_ours_may_be_mixed_in_any_order() -> None:
    words = ["--nnodes", "2", "--sizes", "4KiB", "--rdzv-endpoint=host:1", "-o", "json", "-r", "3", "--slow-below=50%"]
    samples, rest = flags.parse(words)
    assert rest == ["--nnodes", "2", "--rdzv-endpoint=host:1", "-r", "3"]
    assert (samples.sizes_for("nccl"), samples.output, samples.slow_below) == ((4096,), "json", 0.5)


def test_a_backend_has_the_sizes_at_which_it_reaches_its_bandwidth() -> None:
    samples, _ = flags.parse([])
    assert samples.sizes_for("gloo")[-1] == 2**24
    assert samples.sizes_for("nccl")[-1] == 2**30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "4Q"], "Argument --sizes: '4Q' is not a size; write it as 4KiB"),
        (["--sizes", "8KiB:4KiB"], "'8KiB:4KiB' begins above its end"),
        (["--sizes", "1024GiB"], "'1024GiB' is not a size"),
        (["--operations", "all_redcue"], "Argument --operations: 'all_redcue' is unknown; there are broadcast"),
        (["--backend", "mpi"], "Argument --backend: invalid choice: 'mpi'"),
        (["--repeats", "0"], "Argument --repeats: '0' is not a whole number from 1"),
        (["--output"], "Argument -o/--output: expected one argument"),
        (["train.py"], "'train.py' is not a flag, and collectives run no script; --help lists the flags."),
    ],
)
def test_a_wrong_request_starts_nothing(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    def launch(_: object) -> int:
        raise AssertionError

    assert cli.main(words, launch) == BadRequest.exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_the_launcher_gets_torchruns_flags_then_the_worker_then_the_request() -> None:
    started: list[list[str]] = []

    def launch(words: Sequence[str]) -> int:
        started.append([*words])
        return 7

    assert cli.main(["--sizes", "4KiB", "--nnodes", "2"], launch) == 7
    [words] = started
    assert (words[:2], words[4:6]) == (["--nnodes", "2"], ["--module", cli.WORKER])
    assert json.loads(words[6])["sizes"] == [4096]
