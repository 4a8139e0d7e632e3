"""An earlier run: what counts as slower, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_collectives import report
from ddp_collectives.comparison import BaselineRun, ChangeVerdict
from ddp_collectives.errors import BadRequest
from ddp_collectives.reporter import ResultReporter
from ddp_collectives.request import parse
from ddp_collectives.result import Result, Unsupported
from tests.support.collective_results import a_result

ABOUT: dict[str, Any] = {"backend": "gloo", "world_size": 2, "torch": "2.13.0", "ranks": [{"host": "a"}, {"host": "b"}]}
STEADY = [1.0, 1.01, 1.02, 1.03, 1.04]


def measured(times: list[float], size_bytes: int = 4096, wrong: tuple[dict[str, Any], ...] = ()) -> Result:
    return a_result("all_reduce", size_bytes, times, 1.5, wrong)


def kept(folder: Path, *results: Result) -> BaselineRun:
    file = folder / "earlier.json"
    document = report.results_to_json(ABOUT, [(result, None) for result in results], [Unsupported("barrier", "", "no")])
    file.write_text(document)
    return BaselineRun.read(str(file))


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (STEADY, ChangeVerdict.SAME),
        ([time * 1.05 for time in STEADY], ChangeVerdict.SAME),
        ([time * 1.3 for time in STEADY], ChangeVerdict.SLOWER),
        ([time / 1.3 for time in STEADY], ChangeVerdict.FASTER),
        ([0.9, 0.95, 1.3, 2.0, 9.0], ChangeVerdict.SAME),
        ([1.02, 1.02, 1.02, 50.0, 90.0], ChangeVerdict.SAME),
    ],
    ids=["same", "within the tolerance", "slower", "faster", "noisy", "two stragglers"],
)
def test_slower_means_by_more_than_the_tolerance_and_than_the_noise(
    tmp_path: Path, now: list[float], verdict: ChangeVerdict
) -> None:
    assert kept(tmp_path, measured(STEADY)).change(measured(now), 0.1).verdict is verdict


def test_a_noisy_earlier_run_blames_nobody(tmp_path: Path) -> None:
    assert (
        kept(tmp_path, measured([1.0, 1.0, 1.0, 2.0, 2.0])).change(measured([1.5] * 5), 0.1).verdict
        is ChangeVerdict.SAME
    )


def test_a_measurement_that_the_earlier_run_lacks_is_new(tmp_path: Path) -> None:
    assert kept(tmp_path, measured(STEADY)).change(measured(STEADY, 8192), 0.1).verdict is ChangeVerdict.NEW


def outcome(earlier: BaselineRun | None, *results: Result, output: str = "table") -> tuple[int, str]:
    made = ResultReporter(parse([f"--output={output}"]), earlier)
    made.begin(ABOUT)
    for result in results:
        made.take(result)
    return made.finish(ABOUT)


def test_the_exit_code_says_slower_and_the_sentence_what_got_slowest(tmp_path: Path) -> None:
    earlier = kept(tmp_path, measured(STEADY), measured(STEADY, 8192), measured(STEADY, 16384))
    now = [measured(STEADY), measured([2.0] * 5, 8192), measured([4.0] * 5, 16384)]
    code, sentence = outcome(earlier, *now)
    assert code == 3
    assert f"2 of 3 measurements are slower than in {earlier.file}" in sentence
    assert "all_reduce float32 of 16 KiB, 3.92 times." in sentence


def test_a_wrong_result_counts_for_more_than_a_slow_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"rank": 1, "element": 5, "expected": 12.0, "got": 13.0, "count": 2}
    code, sentence = outcome(kept(tmp_path, measured(STEADY)), measured([9.0] * 5, wrong=(wrong,)))
    assert code == 1
    assert sentence == "all_reduce float32 of 4 KiB: rank 1 got 13 for 12 at element 5, 2 elements are wrong."
    table = capsys.readouterr().out
    assert "WRONG" in table
    assert "slower (8.82x)" in table


def test_what_was_printed_as_json_is_read_back_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(None, measured(STEADY), output="json") == (0, "")
    printed = capsys.readouterr().out
    (tmp_path / "run.json").write_text(printed)
    [result] = BaselineRun.read(str(tmp_path / "run.json")).results.values()
    assert result == Result.from_json(json.loads(printed)["results"][0])
    assert result.bus_bytes_per_second == pytest.approx(1.5 * 4096 / 1.02)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read: No such file or directory."),
        ("{", "is not JSON"),
        ("[]", "is not an output of `ddp-launch collectives -o json`."),
        ('{"kind": "Collectives", "apiVersion": "preflight.ddp/v9"}', "has the version preflight.ddp/v9"),
        ('{"kind": "Collectives", "apiVersion": "preflight.ddp/v1"}', "is damaged: 'results'."),
        ('{"kind": "Collectives", "apiVersion": "preflight.ddp/v1", "results": [{"operation": 1}]}', "is damaged"),
    ],
)
def test_a_file_that_is_no_earlier_run_is_refused_by_name(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadRequest, match=r"run\.json") as error:
        BaselineRun.read(str(file))
    assert sentence in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("backend", "nccl"), ("world_size", 8)])
def test_a_run_of_another_kind_is_not_compared(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"measured with {key} .*, this run has {value}"):
        kept(tmp_path, measured(STEADY)).check_comparable(ABOUT | {key: value})
