"""Flags of ``ddp-launch collectives``: what they mean, and one sentence for what they cannot mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddp_collectives import (
    cli,
    operations,
    request,
)
from ddp_collectives.errors import BadRequest


def test_every_operation_that_can_be_asked_for_is_there() -> None:
    assert tuple(operations.OPERATIONS) == request.NAMES


def test_torchruns_flags_and_ours_may_be_mixed_in_any_order() -> None:
    words = ["--nnodes", "2", "--sizes", "4KiB", "--rdzv-endpoint=host:1", "-o", "json", "-r", "3", "--factor=2"]
    ours, rest = request.split(words)
    assert rest == ["--nnodes", "2", "--rdzv-endpoint=host:1", "-r", "3"]
    asked = request.parse(ours)
    assert (asked.sizes_of("nccl"), asked.output, asked.factor, asked.dtypes) == ((4096,), "json", 2, ("float32",))


def test_a_backend_has_the_sizes_at_which_it_reaches_its_bandwidth() -> None:
    asked = request.parse([])
    assert asked.sizes_of("gloo")[-1] == 2**24
    assert asked.sizes_of("nccl")[-1] == 2**30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "4Q"], "'4Q' is not a size of a message; write it as 4KiB"),
        (["--sizes", "8KiB:4KiB"], "'8KiB:4KiB' begins above its end"),
        (["--sizes", ","], "',' names no size"),
        (["--sizes", "0"], "'0' is not a size"),
        (["--sizes", "1:1GiB", "--factor", "1"], "--factor '1' is not a whole number from 2"),
        (["--sizes", "1TiB"], "'1TiB' is not a size"),
        (["--operations", "all_redcue"], "--operations 'all_redcue' is unknown; did you mean all_reduce?"),
        (["--operations", ""], "--operations names nothing; there are broadcast"),
        (["--dtype", "complex64"], "--dtype 'complex64' is unknown; there are float32"),
        (["--backend", "mpi"], "--backend 'mpi' is unknown"),
        (["--repeats", "2"], "--repeats '2' is not a whole number from 3"),
        (["--tolerance", "-1%"], "Argument --tolerance: expected one argument"),
        (["--seed", "x"], "--seed 'x' is not a whole number from 0"),
        (["--output"], "Argument -o/--output: expected one argument"),
        (["train.py"], "'train.py' is not a flag, and collectives run no script of yours"),
        (["--nnodes", "2", "train.py", "--sizes", "4KiB"], "'train.py' is not a flag"),
        (["--size", "4KiB"], "Unknown flag --size; did you mean --sizes?"),
        (["--zzz"], "Unknown flag --zzz; ddp-launch collectives --help lists the flags."),
    ],
)
def test_what_cannot_be_meant_gets_one_sentence_and_starts_nothing(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(_: object) -> int:
        raise AssertionError

    assert cli.main(words, launch) == BadRequest.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in told.err
    assert told.err.count("\n") == 1


def test_the_launcher_gets_torchruns_flags_then_the_worker_then_ours() -> None:
    started: list[list[str]] = []

    def launch(words: Sequence[str]) -> int:
        started.append([*words])
        return 7

    assert cli.main(["--sizes", "4KiB", "--nnodes", "2"], launch) == 7
    [words] = started
    assert words[:2] == ["--nnodes", "2"]
    assert words[4:6] == ["--module", cli.WORKER]
    assert request.parse(words[6:]).sizes == "4KiB"
