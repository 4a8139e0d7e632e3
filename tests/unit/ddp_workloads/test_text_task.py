"""The task ``text``: windows, split, and files that are read in blocks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.train.loop.callbacks import model_report
from ddp_trainer.train.utils.errors import BadData
from ddp_workloads import text
from ddp_workloads.digits import Digits
from ddp_workloads.text import MOST_TEST_WINDOWS, Text, Windows, generate_text, read


def a_folder(path: Path, files: int = 30, length: int = 100) -> Path:
    for number in range(files):
        (path / f"{number:02}.txt").write_text(f"{number:02} " * length)
    return path


def add_others(path: Path) -> None:
    """Add a hidden file and directories that tools create."""
    (path / ".hidden").write_text("hidden")
    for name in ("__pycache__", ".git", "site-packages"):
        (path / name).mkdir()
        (path / name / "file").write_text("not ours")


def test_windows_lie_side_by_side_and_know_the_next_byte() -> None:
    windows = Windows(torch.arange(11, dtype=torch.uint8), 5)
    assert len(windows) == 2
    inputs, targets = windows.batch(torch.tensor([0, 1]))
    assert inputs.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert targets.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert [tensor.tolist() for tensor in windows[1]] == [inputs[1].tolist(), targets[1].tolist()]


def test_fewer_windows_than_there_are_come_from_everywhere() -> None:
    windows = Windows(torch.arange(101, dtype=torch.uint8), 10, most=5)
    assert windows.batch(torch.arange(5))[0][:, 0].tolist() == [0, 20, 40, 60, 80]
    assert len(Windows(torch.zeros(1_000_000, dtype=torch.uint8), 10, most=MOST_TEST_WINDOWS)) == MOST_TEST_WINDOWS


def test_some_files_are_for_the_test_and_the_same_ones_each_time(tmp_path: Path) -> None:
    first, second = (read(a_folder(tmp_path), least=10) for _ in range(2))
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.test, second.test)
    assert len(first.train) + len(first.test) == 30 * 300
    assert len(first.test) % 300 == 0
    assert 0 < len(first.test) < len(first.train) / 2
    words = [set(bytes(side.tolist()).split()) for side in (first.train, first.test)]
    assert not words[0] & words[1]


def test_of_a_single_file_the_last_tenth_is_for_the_test(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_bytes(bytes(range(100)).replace(b"\0", b"!"))
    corpus = read(tmp_path, least=5)
    assert corpus.test.tolist() == list(range(90, 100))
    assert len(corpus.train) == 90


def test_what_nobody_wrote_as_text_is_left_out(tmp_path: Path) -> None:
    plain = read(a_folder(tmp_path), least=10)
    (tmp_path / "binary").write_bytes(b"text\0text")
    add_others(tmp_path)
    assert read(tmp_path, least=10).sha256 == plain.sha256


def test_a_changed_byte_and_a_new_name_are_other_data(tmp_path: Path) -> None:
    digests = {read(a_folder(tmp_path), least=10).sha256}
    (tmp_path / "00.txt").write_bytes(b"other " * 50)
    digests.add(read(tmp_path, least=10).sha256)
    (tmp_path / "00.txt").rename(tmp_path / "zz.txt")
    digests.add(read(tmp_path, least=10).sha256)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path / "missing", "missing does not exist. Give --data a folder with text files."),
        (lambda path: (path / "file").write_text("") or path / "file", "file is a file."),
        (lambda path: path, "has 0 bytes of text, and two windows need 258. Give --data a folder with more text"),
        (lambda path: (path / "f").write_bytes(b"\0" * 1000) and path, "has 0 bytes of text"),
    ],
    ids=["missing", "a file", "empty", "binary"],
)
def test_a_folder_without_text_is_refused(make: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadData) as info:
        Text(data=make(tmp_path))  # type: ignore[operator]
    assert sentence in str(info.value)
    assert info.value.exit_code == 2


def test_the_loss_of_certainty_is_nothing_and_that_of_no_idea_is_eight_bits(tmp_path: Path) -> None:
    class Knows(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.one_hot(inputs + 1, 256) * self.scale

    task = Text(data=a_folder(tmp_path), window=4)
    batch = torch.tensor([[1, 2, 3, 4], [7, 8, 9, 10]]), torch.tensor([[2, 3, 4, 5], [8, 9, 10, 11]])
    assert task.losses(Knows(100.0), batch).tolist() == pytest.approx([0, 0])
    assert task.losses(Knows(0.0), batch).tolist() == pytest.approx([math.log(256)] * 2)
    assert float(task.metrics(Knows(0.0), batch)["bits_per_byte"]) == pytest.approx(16)
    assert float(task.metrics(Knows(1.0), batch)["accuracy"]) == 2
    assert task.model()(batch[0]).shape == (2, 4, 256)


class _Alphabet(nn.Module):
    """A model that predicts the next byte of the alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.shape == (1, 8)
        return nn.functional.one_hot((tokens + 1) % 256, 256) * 100.0 + self.weight


def test_a_model_is_shown_by_what_it_writes(tmp_path: Path) -> None:
    task = Text(data=a_folder(tmp_path), window=8)
    model = _Alphabet().train()
    assert generate_text(model, b"abc", 5, 8) == "abcdefgh"
    text = model_report(task, model)
    assert text.startswith("The model writes:\ndef !")
    assert text == model_report(task, model)
    assert model.training


def test_a_task_that_cannot_show_its_model_does_not_fail_the_run(tmp_path: Path) -> None:
    task = Text(data=a_folder(tmp_path), window=8)
    assert model_report(task, nn.Identity()) == "What was learnt could not be shown: StopIteration()."
    assert model_report(Digits(), nn.Identity()) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 30 small files and of others that are not text of the user."""
    for number in range(30):
        file = tmp_path / f"{number % 3}" / f"{number:02}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"File {number}. " * (5 + number))
    add_others(tmp_path)
    return tmp_path


@pytest.fixture
def stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Text:
    """Return the task for a folder that is too large for memory."""
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    return Text(data=folder, window=16)


@pytest.mark.parametrize("window", [16, 1500], ids=["files for the test", "the last tenth for the test"])
def test_stored_text_has_the_windows_of_loaded_text(folder: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    stored = Text(data=folder, window=window)
    corpus = text.read(folder, least=window + 1)
    train, test = Windows(corpus.train, window), Windows(corpus.test, window, most=text.MOST_TEST_WINDOWS)
    samples, tests = stored.train_samples(), stored.test_samples()

    assert not isinstance(samples, Windows), "the training windows are not in memory"
    assert len(samples) == len(train)
    assert len(tests) == len(test)
    for windows, expected in ((samples, train), (tests, test)):
        for number in range(len(windows)):
            assert all(map(torch.equal, windows[number], expected[number]))


def test_a_block_of_windows_is_read_together(stored: Text) -> None:
    samples = stored.train_samples()
    assert not isinstance(samples, Windows)

    together = [samples.decode(record) for record in samples.read_block(3, 40)]

    assert all(torch.equal(together[at][0], samples[3 + at][0]) for at in range(40))


def test_the_digest_changes_with_a_size(stored: Text, folder: Path) -> None:
    before = stored.data_digest()
    (folder / "0/00.txt").write_text("shorter")

    assert Text(data=folder, window=16).data_digest() != before


def test_too_little_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_BYTES", 100)
    total = sum(file.stat().st_size for file in folder.glob("*/*.txt"))
    with pytest.raises(BadData, match=f"has {total} bytes of text in 30 files"):
        Text(data=folder, window=total)


def test_a_file_that_was_cut_during_the_run_is_named(stored: Text, folder: Path) -> None:
    for file in folder.glob("*/*.txt"):
        file.write_text("cut")

    with pytest.raises(BadData, match="has 3 bytes, and had"):
        stored.train_samples()[0]
